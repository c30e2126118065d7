"""Cohere's Command R and R+: attention and a gated MLP beside each other behind one LayerNorm without bias; logits with
a factor. R+ has a LayerNorm over each head of q and k.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import attention, conversions, mlp, stage, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_norm_decoder import EPS_KEY, add_parallel, leave, normed
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.architectures.tables import HeadNorms, has_head_norms, layer_weight
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec, TensorEntry, Tensors

DEFAULTS = Defaults(
    max_position=8192, heads=64, vocab=256000, bos_id=5, eos_id=255001, norm_eps=1e-5, theta=500000.0,
    intermediate=22528, attention_bias=False
)  # fmt: skip


PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    *tables.ATTENTION_AND_BIASES,
    layer_weight("q_norm", "self_attn.q_norm", "attn_q_norm", "query", when=has_head_norms),
    layer_weight("k_norm", "self_attn.k_norm", "attn_k_norm", "kv", when=has_head_norms),
    *tables.GATE_UP_DOWN,
)


def _read_folder(config: FolderConfig) -> ModelSpec:
    config.refuse_other_layers(window=None)
    return read_cohere(config, DEFAULTS, config.fields.boolean("use_qk_norm", False))


def read_cohere(config: FolderConfig, defaults: Defaults, head_norms: bool = False) -> ModelSpec:
    """The figures in config.json that all generations have."""
    config = config.respelled({"layer_norm_eps": "rms_norm_eps"})
    scale = config.fields.number("logit_scale", 0.0625)
    return replace(config.decoder(defaults), logits_scale=scale, own=HeadNorms(head_norms))


def read_cohere_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file that all generations have."""
    scale = config.fields.number("logit_scale", 1.0, least=0.0) or 1.0
    head_norms = "model.layers.0.self_attn.q_norm.weight" in config.tensors
    return replace(config.respelled(EPS_KEY).decoder(), logits_scale=scale, own=HeadNorms(head_norms))


def in_halves(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors with the rows of q and k, whose rope turns neighbours, in the order of one that turns halves: scores
    are sums of the same products. Norms of heads, which are a row for each, likewise.
    """
    found = {}
    for name, entry in conversions.interleaved_heads(tensors, spec).items():
        heads = {"q_norm": spec.num_heads, "k_norm": spec.num_kv_heads}.get(name.split(".")[-2])
        if heads and entry.shape == (heads, spec.head_dim):
            entry = replace(entry, shape=(heads * spec.head_dim,), permuted_heads=heads)
        found[name] = entry
    return found


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """Logits of the step's selected rows, or the rows for the next stage."""
    x, eps, head = stage.enter(ops, model), model.spec.norm_eps, model.spec.head_dim
    rotation = attention.angles(ops, model.rope)
    for index, layer in enumerate(model.parameters.layers):
        h = normed(ops, model, layer, "input_norm", x)
        q, k, v = attention.project_qkv(ops, model, index, h)
        if "q_norm" in layer:
            q, k = (ops.layer_norm(rows, layer[key], None, eps, head) for rows, key in ((q, "q_norm"), (k, "k_norm")))
        inner = stage.select_last(ops, model, index, attention.attended(ops, model, index, (q, k, v), rotation))
        x, h = (stage.select_last(ops, model, index, rows) for rows in (x, h))
        x = add_parallel(ops, model, layer, x, inner, mlp.gated(ops, layer, h))
    return leave(ops, model, x)


ARCHITECTURE = Architecture(
    "cohere",
    FolderFormat(
        "CohereForCausalLM",
        _read_folder,
        fields=DEFAULTS.fields | {"layer_norm_eps", "logit_scale", "use_qk_norm"},
        harmless={"model_max_length": "transformers does not read it"},
        convert=in_halves,
    ),
    GgufFormat(
        "command-r",
        lambda config: config.refuse_window(read_cohere_gguf(config)),
        keys=frozenset(("logit_scale",)),
        convert=in_halves,
    ),
    PARAMETERS,
    forward,
)
