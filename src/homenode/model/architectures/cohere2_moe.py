"""Cohere 2 with experts (North): attention and experts beside each other behind one norm; first layers may have an MLP
and rope without a window. The expert that every token uses and the others are averaged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from homenode.compute.ops import ExpertScore, Ops, Tensor
from homenode.errors import UnsupportedError
from homenode.model.architectures import attention, cohere, mlp, stage, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.cohere2 import WINDOW, with_windows
from homenode.model.architectures.layer_kinds import INTERVAL, all_but_each, layers_with_mlp
from homenode.model.architectures.layer_norm_decoder import EPS_KEY
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.config.folder_config import ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.formats.bounded_files import quoted
from homenode.model.spec import ModelSpec, MoeSpec

DEFAULTS = replace(cohere.DEFAULTS, head_dim=128, theta=10000.0)
EXPERTS = ExpertDefaults(experts=8, experts_per_token=2, size=0, keys=("num_experts",))
PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    *tables.ATTENTION_AND_BIASES,
    *tables.GATE_UP_DOWN,
    *tables.EXPERTS,
    *tables.SHARED_EXPERTS,
)
_SCORES: dict[str, ExpertScore] = {"softmax": "chosen_softmax", "sigmoid": "sigmoid"}


@dataclass(frozen=True)
class AveragedExperts:
    """`centred`: norms take the mean away; `share`: of what experts make, with the one that every token uses."""

    centred: bool
    share: float


def _read_folder(config: FolderConfig) -> ModelSpec:
    fields = config.fields
    if (table := fields.table("rope_scaling")) is not None and table.names():
        raise UnsupportedError(
            f"{config.path}: rope_scaling is not supported in {config.architecture}: transformers leaves it alone and "
            "other engines follow it; homenode wants rope_parameters, or rope_theta"
        )
    centred = not fields.has("rms_norm_eps")
    spec = config.respelled({"layer_norm_eps": "rms_norm_eps"} if centred else {}).decoder(DEFAULTS)
    first = fields.integer("first_k_dense_replace", 0, minimum=0, maximum=limits.MOST_LAYERS)
    dense, patterns = layers_with_mlp(fields, spec.num_layers, first), {}
    for key, default in (("prefix_dense_sliding_window_pattern", 1), ("sliding_window_pattern", INTERVAL)):
        patterns[key] = fields.integer(key, default, maximum=limits.MOST_LAYERS)
    before, behind = patterns.values()

    def placed(layers: int) -> tuple[bool, ...]:
        return (*all_but_each(min(first, layers), before), *all_but_each(max(layers - first, 0), behind))

    windowed = with_windows(config, spec, placed)
    return replace(
        _turning(windowed, dense if before == 1 else ()),
        logits_scale=fields.number("logit_scale", 0.0625),
        intermediate_size=fields.integer(
            "prefix_dense_intermediate_size", spec.intermediate_size, maximum=limits.MOST_INTERMEDIATE
        ),
        moe=replace(_experts(config, spec.intermediate_size), dense_layers=dense),
        own=AveragedExperts(centred, _share(config)),
    )


def _experts(config: FolderConfig, size: int) -> MoeSpec:
    fields = config.fields
    if (named := fields.text("expert_selection_fn", "softmax")) not in _SCORES:
        raise UnsupportedError(
            f"{config.path}: expert_selection_fn {quoted(named)} is not supported; homenode runs "
            f"{' and '.join(_SCORES)}"
        )
    shared = size * fields.integer("num_shared_experts", 0, minimum=0, maximum=limits.MOST_EXPERTS)
    normalise = fields.boolean("norm_topk_prob", True)
    return replace(config.moe(EXPERTS, normalise=normalise, size=size, shared=shared), score=_SCORES[named])


def _share(config: FolderConfig) -> float:
    ways = {"average": 0.5, "sum": 1.0}
    if (named := config.fields.text("shared_expert_combination_strategy", "average")) not in ways:
        raise config.fields.wrong("shared_expert_combination_strategy", named, " or ".join(ways))
    return ways[named] if config.fields.integer("num_shared_experts", 0, minimum=0) else 1.0


def _turning(spec: ModelSpec, more: tuple[int, ...]) -> ModelSpec:
    """`spec` with rope in the layers with a window and in `more`."""
    sliding = spec.sliding_layers or (True,) * spec.num_layers
    return replace(spec, rope_layers=tuple(sliding[layer] or layer in more for layer in range(spec.num_layers)))


def _read_gguf(config: GgufConfig) -> ModelSpec:
    fields = config.fields
    centred = not fields.has("attention.layer_norm_rms_epsilon")
    spec = config.respelled(EPS_KEY if centred else {}).decoder()
    spec = config.with_window_in(spec, config.window(WINDOW), all_but_each)
    moe = config.moe(spec, size=spec.intermediate_size, scores=(2, 3), normalise=False)
    return replace(
        _turning(spec, moe.dense_layers),
        logits_scale=fields.number("logit_scale", 1.0, least=0.0) or 1.0,
        moe=moe,
        own=AveragedExperts(centred, 0.5 if moe.shared_intermediate_size else 1.0),
    )


def _normed(ops: Ops, model: ForwardContext, x: Tensor, weight: Tensor) -> Tensor:
    eps, own = model.spec.norm_eps, model.spec.own_as(AveragedExperts)
    return ops.layer_norm(x, weight, None, eps) if own.centred else ops.rms_norm(x, weight, eps)


def _forward(ops: Ops, model: ForwardContext) -> Tensor:
    x, rotation = stage.enter(ops, model), attention.angles(ops, model.rope)
    share = model.spec.own_as(AveragedExperts).share
    for index, layer in enumerate(model.parameters.layers):
        h = _normed(ops, model, x, layer["input_norm"])
        inner = attention.attended(ops, model, index, attention.project_qkv(ops, model, index, h), rotation)
        inner, x, h = (stage.select_last(ops, model, index, rows) for rows in (inner, x, h))
        x = stage.project_out(ops, model, inner, layer["o"], layer.get("o_bias"), x)
        if "router" not in layer:
            x = stage.project_out(ops, model, mlp.gated(ops, layer, h), layer["down"], None, x)
        elif share == 1.0:
            x = mlp.mixture(ops, model, index, h, x)
        else:
            x = ops.add(x, ops.scale(mlp.mixture(ops, model, index, h, None), share))
    if not model.part.last_stage:
        return x
    return stage.logits_of(ops, model, _normed(ops, model, x, model.parameters.top["norm"]))


ARCHITECTURE = Architecture(
    "cohere2_moe",
    FolderFormat(
        "Cohere2MoeForCausalLM",
        _read_folder,
        fields=DEFAULTS.fields
        | EXPERTS.fields
        | frozenset(
            "layer_norm_eps logit_scale sliding_window sliding_window_pattern prefix_dense_sliding_window_pattern "
            "mlp_layer_types first_k_dense_replace prefix_dense_intermediate_size num_shared_experts norm_topk_prob "
            "shared_expert_combination_strategy expert_selection_fn".split()
        ),
        convert=cohere.in_halves,
    ),
    GgufFormat("cohere2moe", _read_gguf, keys=frozenset(("logit_scale",)), convert=cohere.in_halves),
    PARAMETERS,
    _forward,
)
