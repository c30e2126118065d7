"""LFM2 with experts in place of the MLP, chosen by sigmoid and a bias, behind first layers with an MLP."""

from __future__ import annotations

from dataclasses import dataclass, replace

from homenode.model.architectures import lfm2, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.parameters import Parameter
from homenode.model.architectures.tables import layer_weight
from homenode.model.config.folder_config import ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec

DEFAULTS = replace(lfm2.DEFAULTS, intermediate=7168)
EXPERTS = ExpertDefaults(experts=32, experts_per_token=4, size=1792, keys=("num_experts", "num_local_experts"))
_FRONT, _EXPERT = "model.layers.{layer}.feed_forward", "feed_forward.experts.{expert}"


@dataclass(frozen=True)
class ExpertBias:
    """A figure that says whether experts are chosen with a bias."""

    has: bool


def _has_bias(spec: ModelSpec, part: ModelPart, layer: int | None) -> bool:
    return tables.has_experts(spec, part, layer) and spec.own == ExpertBias(True)


PARAMETERS = (
    *lfm2.MIXERS,
    layer_weight("router", "feed_forward.gate", "ffn_gate_inp", "experts", "hidden", when=tables.has_experts),
    Parameter("choice_bias", f"{_FRONT}.expert_bias", ("experts",), "blk.{layer}.exp_probs_b.bias", _has_bias),
    *tables.gated_matrices("expert_", _EXPERT, "_exps", "expert_intermediate", tables.has_experts, tables.W1_W3_W2),
)


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = config.respelled(lfm2.SPELLED)
    fields, spec = config.fields, config.decoder(DEFAULTS)
    dense = fields.integer("num_dense_layers", 2, minimum=0, maximum=limits.MOST_LAYERS)
    if dense < spec.num_layers:
        moe = config.moe(
            EXPERTS,
            normalise=fields.boolean("norm_topk_prob", True),
            dense=tuple(range(dense)),
            score="sigmoid",
            epsilon=1e-6,
            scale=fields.number("routed_scaling_factor", 1.0),
        )
        spec = replace(spec, moe=moe)
    spec = replace(spec, own=ExpertBias(fields.boolean("use_expert_bias", True)))
    return lfm2.read_mixers(config, spec, fields.texts("layer_types"))


def _read_gguf(config: GgufConfig) -> ModelSpec:
    spec = lfm2.read_gguf(config)
    moe = config.moe(spec, f"{_FRONT}.gate.weight", scores=(2,), epsilon=1e-6)
    biased = any(f"{_FRONT}.expert_bias".format(layer=layer) in config.tensors for layer in range(spec.num_layers))
    return replace(spec, moe=moe, own=ExpertBias(biased))


ARCHITECTURE = Architecture(
    "lfm2_moe",
    FolderFormat(
        "Lfm2MoeForCausalLM",
        _read_folder,
        fields=lfm2.FIELDS
        | EXPERTS.fields
        | {"num_dense_layers", "norm_topk_prob", "routed_scaling_factor", "use_expert_bias"},
        harmless=lfm2.HARMLESS,
        convert=lfm2.convert,
    ),
    GgufFormat("lfm2moe", _read_gguf, keys=lfm2.KEYS, names=lfm2.NAMES, convert=lfm2.convert),
    PARAMETERS,
    lfm2.forward,
)
