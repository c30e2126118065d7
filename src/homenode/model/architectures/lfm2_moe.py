"""LFM2 with experts in place of the MLP, chosen by sigmoid and a bias, behind first layers with an MLP."""

from __future__ import annotations

from dataclasses import dataclass, replace

from homenode.model.architectures import common, lfm2
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.common import layer_weight
from homenode.model.architectures.parameters import Parameter
from homenode.model.config.folder_config import ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec

NAME = "lfm2_moe"
DEFAULTS = replace(lfm2.DEFAULTS, intermediate=7168)
EXPERTS = ExpertDefaults(experts=32, experts_per_token=4, size=1792, keys=("num_experts", "num_local_experts"))
_FRONT = "model.layers.{layer}.feed_forward"


@dataclass(frozen=True)
class ExpertBias:
    """Whether experts are chosen with a bias."""

    has: bool


def _has_bias(spec: ModelSpec, part: ModelPart, layer: int | None) -> bool:
    return common.has_experts(spec, part, layer) and spec.own == ExpertBias(True)


def _expert(key: str, name: str, gguf: str, *shape: str) -> Parameter:
    return layer_weight(key, f"feed_forward.experts.{{expert}}.{name}", gguf, *shape, when=common.has_experts)


PARAMETERS = (
    *lfm2.MIXERS,
    layer_weight("router", "feed_forward.gate", "ffn_gate_inp", "experts", "hidden", when=common.has_experts),
    Parameter("choice_bias", f"{_FRONT}.expert_bias", ("experts",), "blk.{layer}.exp_probs_b.bias", _has_bias),
    _expert("expert_gate", "w1", "ffn_gate_exps", "expert_intermediate", "hidden"),
    _expert("expert_up", "w3", "ffn_up_exps", "expert_intermediate", "hidden"),
    _expert("expert_down", "w2", "ffn_down_exps", "hidden", "expert_intermediate"),
)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    config = config.respelled(lfm2.SPELLED)
    fields, spec = config.fields, config.decoder(NAME, DEFAULTS)
    dense = fields.integer("num_dense_layers", 2, minimum=0, maximum=limits.MOST_LAYERS)
    if dense < spec.num_layers:
        normalise = fields.boolean("norm_topk_prob", True)
        moe = config.moe(EXPERTS, normalise=normalise, dense=tuple(range(dense)))
        scale = fields.number("routed_scaling_factor", 1.0)
        spec = replace(spec, moe=replace(moe, score="sigmoid", epsilon=1e-6, scale=scale))
    spec = replace(spec, own=ExpertBias(fields.boolean("use_expert_bias", True)))
    return lfm2.read_mixers(config, spec, fields.texts("layer_types"))


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    spec = lfm2.read_gguf_mixers(config, NAME)
    moe = config.moe(spec, f"{_FRONT}.gate.weight", scores=(2,), epsilon=1e-6)
    biased = any(f"{_FRONT}.expert_bias".format(layer=layer) in config.tensors for layer in range(spec.num_layers))
    return replace(spec, moe=moe, own=ExpertBias(biased))


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "Lfm2MoeForCausalLM",
        read_folder,
        fields=lfm2.FIELDS
        | frozenset(
            "num_dense_layers num_experts num_local_experts num_experts_per_tok moe_intermediate_size norm_topk_prob "
            "routed_scaling_factor use_expert_bias".split()
        ),
        harmless=lfm2.HARMLESS,
        convert=lfm2.convert,
    ),
    GgufFormat("lfm2moe", read_gguf, keys=lfm2.KEYS, names=lfm2.NAMES, convert=lfm2.convert),
    PARAMETERS,
    lfm2.forward,
)
