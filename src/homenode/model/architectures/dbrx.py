"""DBRX: LayerNorm without bias, limited q, k and v in one matrix, and experts in every layer. Folders have the matrices
of a layer's experts one below the other.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.errors import UnsupportedError
from homenode.model.architectures import conversions, mpt, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat, renamed
from homenode.model.architectures.layer_norm_decoder import EPS_KEY, BlockStyle, forward
from homenode.model.architectures.tables import layer_weight
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.formats.fields import Fields
from homenode.model.formats.fused_rows import split_fused_rows
from homenode.model.spec import ModelSpec, MoeSpec, TensorEntry, Tensors

EPSILON = 1e-5
DEFAULTS = Defaults(max_position=2048, heads=16, vocab=32000, norm_eps=EPSILON, intermediate=3584, activation=None)
_STACK = ".mlp.stacked."
PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    *tables.ATTENTION,
    layer_weight("post_norm", "post_attention_layernorm", "attn_output_norm", "hidden"),
    *tables.EXPERTS,
)


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = config.respelled(mpt.SPELLED)
    empty = Fields(config.path, {})
    attention, experts = (config.fields.table(key) or empty for key in ("attn_config", "ffn_config"))
    if config.rope_table is None and attention.has("rope_theta"):
        theta = attention.number("rope_theta", above=1.0, most=limits.MOST_THETA)
        config = config.with_rope({"rope_type": "default", "rope_theta": theta})
    if (how := experts.table("ffn_act_fn")) is not None:
        how.refuse_others({"name": "silu"})
    if (norm := experts.optional_number("moe_normalize_expert_weights")) not in (None, 1.0):
        raise UnsupportedError(
            f"{config.path}: ffn_config.moe_normalize_expert_weights {norm:g} is not supported; homenode wants 1 or "
            "null"
        )
    kv_heads = attention.integer("kv_n_heads", 1, maximum=limits.MOST_HEADS)
    spec = config.without("num_key_value_heads").uniform_decoder(replace(DEFAULTS, kv_heads=kv_heads))
    size = experts.integer("ffn_hidden_size", 3584, maximum=limits.MOST_INTERMEDIATE)
    moe = MoeSpec(
        experts.integer("moe_num_experts", 4, maximum=limits.MOST_EXPERTS),
        experts.integer("moe_top_k", 1, maximum=limits.MOST_EXPERTS),
        size,
        normalise=not experts.is_null("moe_normalize_expert_weights"),
    )
    clip = attention.optional_number("clip_qkv")
    return replace(spec, intermediate_size=size, moe=moe, own=BlockStyle(norm_biases=False, clip=clip))


def _read_gguf(config: GgufConfig) -> ModelSpec:
    config = config.respelled(EPS_KEY)
    spec = config.uniform_decoder()
    clip = config.fields.optional_number("attention.clamp_kqv", least=0.0) or None
    moe = config.moe(spec, size=spec.intermediate_size)
    return replace(spec, moe=moe, own=BlockStyle(norm_biases=False, clip=clip))


def _split_folder(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """A folder's tensors, q, k and v and the matrices of each expert by themselves."""
    parts = {"w1": "gate_proj", "v1": "up_proj", "w2": "down_proj"}
    return conversions.split_piled_experts(split_fused_rows(tensors, spec), spec, _STACK, parts)


ARCHITECTURE = Architecture(
    "dbrx",
    FolderFormat(
        "DbrxForCausalLM",
        _read_folder,
        fields=frozenset((*mpt.SPELLED, "attn_config", "ffn_config")),
        harmless={"emb_pdrop": "of training only"},
        modules=renamed(
            "blocks.{layer}.",
            "norm_attn_norm.norm_1=input_layernorm norm_attn_norm.norm_2=post_attention_layernorm "
            "norm_attn_norm.attn.Wqkv=self_attn.qkv_proj norm_attn_norm.attn.out_proj=self_attn.o_proj "
            "ffn.router.layer=mlp.gate ffn.experts.mlp=mlp.stacked",
            "wte=model.embed_tokens norm_f=model.norm",
        ),
        convert=_split_folder,
    ),
    GgufFormat("dbrx", _read_gguf, keys=frozenset(("attention.clamp_kqv",))),
    PARAMETERS,
    forward,
)
