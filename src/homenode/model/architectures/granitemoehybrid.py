"""Granite 4 (hybrid): Granite's multipliers over layers with the recurrence of Mamba 2 or with attention, each followed
by experts and one that every token uses, or by an MLP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import common, mamba_mixer
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.common import layer_weight
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.config.folder_config import ROPE, Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.formats.fields import Fields
from homenode.model.formats.reading import damaged
from homenode.model.formats.stacked_experts import StackedExperts
from homenode.model.formats.tensor_parts import rows_of
from homenode.model.spec import ModelSpec, TensorEntry
from homenode.model.state_mixers import with_mixer

NAME = "granitemoehybrid"
DEFAULTS = Defaults(max_position=2048, heads=32, vocab=32000, bos_id=1, eos_id=2, intermediate=11008)
EXPERTS = ExpertDefaults(experts=8, experts_per_token=2, size=11008, keys=("num_local_experts",))
_SHARED, _EXPERTS = "shared_mlp", "block_sparse_moe"
_STACKED = StackedExperts(f"{_EXPERTS}.input_linear", f"{_EXPERTS}.output_linear")
PARAMETERS = (
    *common.EMBEDDING_AND_HEAD,
    layer_weight("input_norm", "input_layernorm", "attn_norm", "hidden"),
    *mamba_mixer.ATTENTION,
    *mamba_mixer.parameters("mamba"),
    *common.POST_NORM,
    *common.GATE_UP_DOWN,
    *common.EXPERTS,
    *common.SHARED_EXPERTS,
)


@dataclass(frozen=True)
class GraniteHybridExtras:
    """`residual`: what each half of a layer adds is multiplied with. `logits`: what logits are divided by. `rotates`:
    whether attention has a rope.
    """

    residual: float
    logits: float
    rotates: bool


def layers_with(fields: Fields, layers: int, attention: str, recurrence: str) -> tuple[list[int], list[int]]:
    """The layers with attention, and those with a recurrence, by `layer_types`, which may have their older names;
    without it all have a recurrence.
    """
    kinds = fields.texts("layer_types") or (recurrence,) * layers
    names = {"attention": attention, "mamba": recurrence}
    kinds = tuple(names.get(kind, kind) for kind in kinds)
    if len(kinds) != layers or not set(kinds) <= {attention, recurrence}:
        raise fields.wrong("layer_types", list(kinds), f"{layers} values, each {attention} or {recurrence}")
    first, second = ([n for n, kind in enumerate(kinds) if kind == each] for each in (attention, recurrence))
    return first, second


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    config.refuse_activation("hidden_act", "silu")
    rotates = config.fields.text("position_embedding_type") == "rope"
    fields, spec = config.fields, (config if rotates else config.without(*ROPE)).decoder(NAME, DEFAULTS)
    attending, recurrent = layers_with(fields, spec.num_layers, "full_attention", "linear_attention")
    shared = fields.integer("shared_intermediate_size", 1024, maximum=limits.MOST_INTERMEDIATE)
    _, experts = config.experts(EXPERTS)
    extras = GraniteHybridExtras(
        fields.number("residual_multiplier", 1.0),
        fields.number("logits_scaling", 1.0, most=1e6),
        rotates,
    )
    spec = replace(
        spec,
        attention_bias=fields.boolean("attention_bias", False),
        output_bias=fields.boolean("attention_bias", False),
        embedding_scale=fields.number("embedding_multiplier", 1.0),
        attention_scale=fields.number("attention_multiplier", 1.0),
        own=extras,
    )
    if experts:
        moe = config.moe(EXPERTS, normalise=True, size=spec.intermediate_size, shared=shared)
        spec = replace(spec, moe=replace(moe, score="chosen_softmax"))
    else:
        spec = replace(spec, intermediate_size=shared)
    inner = mamba_mixer.expanded(fields, spec.hidden_size)
    return with_mixer(spec, mamba_mixer.read_folder(fields, recurrent, inner), attending)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file: layers without KV heads have a recurrence. A scale of 0 means that there is none."""
    fields = config.fields
    spec = config.refuse_window(config.decoder(NAME, whole_heads=True, own_scale=True, layers_differ=True))
    heads = config.per_layer("attention.head_count_kv", spec.num_kv_heads, minimum=0)
    attending, recurrent = ([n for n, count in enumerate(heads) if bool(count) is each] for each in (True, False))
    extras = GraniteHybridExtras(
        fields.number("residual_scale", 1.0, least=0.0) or 1.0,
        fields.number("logit_scale", 1.0, least=0.0, most=1e6) or 1.0,
        fields.boolean("rope.scaling.finetuned", True),  # the reference reader takes it as a switch
    )
    first = f"model.layers.{attending[0] if attending else 0}.self_attn"
    spec = replace(
        spec,
        attention_bias=f"{first}.q_proj.bias" in config.tensors,
        output_bias=f"{first}.o_proj.bias" in config.tensors,
        embedding_scale=fields.number("embedding_scale", 1.0, least=0.0) or 1.0,
        attention_scale=fields.optional_number("attention.scale", least=0.0) or None,
        own=extras,
    )
    if fields.integer("expert_count", 0, minimum=0):
        moe = config.moe(spec, size=spec.intermediate_size)
        spec = replace(spec, moe=replace(moe, score="chosen_softmax"))
    return with_mixer(spec, mamba_mixer.read_gguf(config, recurrent, "mamba"), attending)


def _convert_folder(tensors: Mapping[str, TensorEntry], spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors of a folder under the names of parameter tables: gate and up lie in one."""
    found: dict[str, TensorEntry] = {}
    mlp = "mlp" if spec.moe is None else "mlp.shared_experts"
    for name, entry in _STACKED.split(tensors, spec).items():
        if name.endswith(f"{_SHARED}.input_linear.weight"):
            front, half = name.removesuffix(f"{_SHARED}.input_linear.weight"), entry.shape[0] // 2
            if len(entry.shape) != 2 or entry.shape[0] % 2:
                raise damaged(
                    entry.file, f"shape of {name}", seen=list(entry.shape), wanted="as many rows of gate as of up"
                )
            for number, part in enumerate(("gate_proj", "up_proj")):
                own = f"{front}{mlp}.{part}.weight"
                found[own] = rows_of(entry, own, number * half, half)
            continue
        own = name.replace(f"{_SHARED}.output_linear", f"{mlp}.down_proj").replace(
            f"{_EXPERTS}.router.layer", "mlp.gate"
        )
        found[own] = replace(entry, name=own)
    return mamba_mixer.convert_folder(found, spec)


def _convert_gguf(tensors: Mapping[str, TensorEntry], spec: ModelSpec) -> dict[str, TensorEntry]:
    return mamba_mixer.split_tensors(common.interleaved_heads(tensors, spec), spec)


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """Logits of the step's selected rows, or the rows for the next stage."""
    own = model.spec.own
    assert isinstance(own, GraniteHybridExtras)
    x = common.enter(ops, model)
    rotation = common.angles(ops, model.rope) if own.rotates else None
    for index, layer in enumerate(model.parameters.layers):
        h = common.normed(ops, model, x, layer["input_norm"])
        if "q" in layer:
            attended = common.attended(ops, model, index, common.project_qkv(ops, model, layer, h), rotation)
            inner, out, bias = common.select_last(ops, model, index, attended), layer["o"], layer.get("o_bias")
        else:
            inner, out, bias = mamba_mixer.mixed(ops, model, index, h), layer["scan_o"], layer.get("scan_o_bias")
        added = common.project_out(ops, model, inner, out, bias, None)
        x = ops.add(common.select_last(ops, model, index, x), ops.scale(added, own.residual))
        h = common.normed(ops, model, x, layer["post_norm"])
        x = ops.add(x, ops.scale(_fed_forward(ops, model, index, h), own.residual))
    return common.leave_scaled(ops, model, x, 1.0 / own.logits)


def _fed_forward(ops: Ops, model: ForwardContext, index: int, h: Tensor) -> Tensor:
    """The MLP of normed rows h; or the experts that they choose, and the one that every row uses."""
    layer = model.parameters.layers[index]
    if "router" not in layer:
        return common.project_out(ops, model, common.gated(ops, layer, h), layer["down"], None, None)
    inner = ops.silu_mul(ops.linear(h, (layer["shared_gate"], layer["shared_up"])))
    shared = ops.linear(inner, (layer["shared_down"],))
    found = common.add_experts(ops, model, index, h, ops.linear(h, (layer["router"],)), shared)
    return common.over_ranks(ops, model, found)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "GraniteMoeHybridForCausalLM",
        read_folder,
        fields=mamba_mixer.FIELDS
        | frozenset(
            "hidden_act attention_bias num_local_experts num_experts_per_tok shared_intermediate_size "
            "position_embedding_type embedding_multiplier attention_multiplier residual_multiplier "
            "logits_scaling".split()
        ),
        harmless=mamba_mixer.HARMLESS,
        convert=_convert_folder,
    ),
    GgufFormat(
        "granitehybrid",
        read_gguf,
        keys=mamba_mixer.KEYS | {"embedding_scale", "residual_scale", "logit_scale"},
        names=mamba_mixer.gguf_names("mamba"),
        convert=_convert_gguf,
        with_or_without_experts=True,
    ),
    PARAMETERS,
    forward,
)
