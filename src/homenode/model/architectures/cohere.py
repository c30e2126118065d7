"""Cohere's Command R and R+: attention and a gated MLP beside each other behind one LayerNorm without bias; logits with
a factor. R+ has a LayerNorm over each head of q and k.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import common
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.common import layer_weight
from homenode.model.architectures.layer_norm_decoder import EPS_KEY, add_parallel, leave, normed
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec, TensorEntry

NAME = "cohere"
DEFAULTS = Defaults(
    max_position=8192, heads=64, vocab=256000, bos_id=5, eos_id=255001, norm_eps=1e-5, theta=500000.0,
    intermediate=22528,
)  # fmt: skip


@dataclass(frozen=True)
class CohereExtras:
    """`logit_scale`: what logits are multiplied with. `head_norms`: whether q and k have a norm over each head."""

    logit_scale: float
    head_norms: bool = False


def extras_of(spec: ModelSpec) -> CohereExtras:
    """Those of a model of Cohere's."""
    assert isinstance(spec.own, CohereExtras)
    return spec.own


def _has_head_norms(spec: ModelSpec, _part: ModelPart, _layer: int | None) -> bool:
    return extras_of(spec).head_norms


PARAMETERS = (
    *common.EMBEDDING_AND_HEAD,
    *common.ATTENTION,
    *common.QKV_BIASES,
    *common.OUTPUT_BIAS,
    layer_weight("q_norm", "self_attn.q_norm", "attn_q_norm", "query", when=_has_head_norms),
    layer_weight("k_norm", "self_attn.k_norm", "attn_k_norm", "kv", when=_has_head_norms),
    *common.GATE_UP_DOWN,
)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    config.refuse_other_layers(window=None)
    head_norms = config.fields.boolean("use_qk_norm", False)
    return read_cohere(config, NAME, DEFAULTS, head_norms)


def read_cohere(config: FolderConfig, name: str, defaults: Defaults, head_norms: bool = False) -> ModelSpec:
    """The figures in config.json that all generations have."""
    config = config.respelled({"layer_norm_eps": "rms_norm_eps"})
    config.refuse_activation("hidden_act", "silu")
    bias = config.fields.boolean("attention_bias", False)
    extras = CohereExtras(config.fields.number("logit_scale", 0.0625), head_norms)
    return replace(config.decoder(name, defaults), attention_bias=bias, output_bias=bias, own=extras)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    return config.refuse_window(read_cohere_gguf(config, NAME))


def read_cohere_gguf(config: GgufConfig, name: str) -> ModelSpec:
    """The figures in a GGUF file that all generations have."""
    scale = config.fields.number("logit_scale", 1.0, least=0.0) or 1.0
    head_norms = "model.layers.0.self_attn.q_norm.weight" in config.tensors
    return replace(config.respelled(EPS_KEY).decoder(name), own=CohereExtras(scale, head_norms))


def in_halves(tensors: Mapping[str, TensorEntry], spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors with the rows of q and k, whose rope turns neighbours, in the order of one that turns halves: scores
    are sums of the same products. Norms of heads, which are a row for each, likewise.
    """
    found = {}
    for name, entry in common.interleaved_heads(tensors, spec).items():
        heads = {"q_norm": spec.num_heads, "k_norm": spec.num_kv_heads}.get(name.split(".")[-2])
        if heads and entry.shape == (heads, spec.head_dim):
            entry = replace(entry, shape=(heads * spec.head_dim,), permuted_heads=heads)
        found[name] = entry
    return found


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """Logits of the step's selected rows, or the rows for the next stage."""
    x = common.enter(ops, model)
    rotation = common.angles(ops, model.rope)
    for index in range(len(model.parameters.layers)):
        x = add_layer(ops, model, index, x, rotation)
    return leave_scaled(ops, model, x)


def add_layer(ops: Ops, model: ForwardContext, index: int, x: Tensor, rotation: Tensor | None) -> Tensor:
    """x plus what layer `index` of this stage makes of it; of the model's last layer the selected rows only."""
    layer = model.parameters.layers[index]
    h = normed(ops, model, layer, "input_norm", x)
    q, k, v = common.project_qkv(ops, model, layer, h)
    if "q_norm" in layer:
        eps, head = model.spec.rms_norm_eps, model.spec.head_dim
        q, k = (ops.layer_norm(rows, layer[key], None, eps, head) for rows, key in ((q, "q_norm"), (k, "k_norm")))
    inner = common.select_last(ops, model, index, common.attended(ops, model, index, (q, k, v), rotation))
    x, h = (common.select_last(ops, model, index, rows) for rows in (x, h))
    return add_parallel(ops, model, layer, x, inner, common.gated(ops, layer, h))


def leave_scaled(ops: Ops, model: ForwardContext, x: Tensor) -> Tensor:
    """As `leave`, logits with their factor."""
    return common.scaled_logits(ops, model, leave(ops, model, x), extras_of(model.spec).logit_scale)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "CohereForCausalLM",
        read_folder,
        fields=frozenset("hidden_act layer_norm_eps attention_bias logit_scale use_qk_norm".split()),
        harmless={"model_max_length": "transformers does not read it"},
        convert=in_halves,
    ),
    GgufFormat("command-r", read_gguf, keys=frozenset(("logit_scale",)), convert=in_halves),
    PARAMETERS,
    forward,
)
