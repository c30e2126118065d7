"""Granite 4 (hybrid): Granite's multipliers over layers with the recurrence of Mamba 2 or with attention, each followed
by experts and one that every token uses, or by an MLP.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import conversions, granite, mamba_mixer, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.config.folder_config import ROPE, Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.formats.fields import Fields
from homenode.model.formats.stacked_experts import StackedExperts
from homenode.model.spec import ModelSpec, TensorEntry, Tensors
from homenode.model.state_mixers import with_mixer

DEFAULTS = Defaults(
    max_position=2048, heads=32, vocab=32000, bos_id=1, eos_id=2, intermediate=11008, attention_bias=False
)
EXPERTS = ExpertDefaults(experts=8, experts_per_token=2, size=11008, keys=("num_local_experts",))
_SHARED, _EXPERTS = "shared_mlp", "block_sparse_moe"
_STACKED = StackedExperts(f"{_EXPERTS}.input_linear", f"{_EXPERTS}.output_linear")
PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    tables.INPUT_NORM,
    *mamba_mixer.ATTENTION,
    *mamba_mixer.parameters("mamba"),
    *tables.POST_NORM,
    *tables.GATE_UP_DOWN,
    *tables.EXPERTS,
    *tables.SHARED_EXPERTS,
)


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


def _read_folder(config: FolderConfig) -> ModelSpec:
    rotates = config.fields.text("position_embedding_type") == "rope"
    fields, spec = config.fields, (config if rotates else config.without(*ROPE)).decoder(DEFAULTS)
    attending, recurrent = layers_with(fields, spec.num_layers, "full_attention", "linear_attention")
    shared = fields.integer("shared_intermediate_size", 1024, maximum=limits.MOST_INTERMEDIATE)
    _, experts = config.experts(EXPERTS)
    spec = granite.read_multipliers(config, replace(spec, rope_layers=() if rotates else (False,) * spec.num_layers))
    if experts:
        moe = config.moe(EXPERTS, normalise=True, size=spec.intermediate_size, shared=shared)
        spec = replace(spec, moe=replace(moe, score="chosen_softmax"))
    else:
        spec = replace(spec, intermediate_size=shared)
    inner = mamba_mixer.expanded(fields, spec.hidden_size)
    return with_mixer(spec, mamba_mixer.read_folder(fields, recurrent, inner), attending)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file: layers without KV heads have a recurrence."""
    spec = config.uniform_decoder(whole_heads=True, own_scale=True, layers_differ=True)
    spec = granite.with_multipliers(config, spec)
    heads = config.per_layer("attention.head_count_kv", spec.num_kv_heads, minimum=0)
    attending, recurrent = ([n for n, count in enumerate(heads) if bool(count) is each] for each in (True, False))
    first = f"model.layers.{attending[0] if attending else 0}.self_attn"
    spec = replace(
        spec,
        attention_bias=f"{first}.q_proj.bias" in config.tensors,
        output_bias=f"{first}.o_proj.bias" in config.tensors,
    )
    if config.fields.integer("expert_count", 0, minimum=0):
        moe = config.moe(spec, size=spec.intermediate_size)
        spec = replace(spec, moe=replace(moe, score="chosen_softmax"))
    return with_mixer(spec, mamba_mixer.read_gguf(config, recurrent, "mamba"), attending)


def _convert_folder(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors of a folder under the names of parameter tables: gate and up lie in one."""
    found: dict[str, TensorEntry] = {}
    mlp = "mlp" if spec.moe is None else "mlp.shared_experts"
    for name, entry in _STACKED.split(tensors, spec).items():
        if name.endswith(f"{_SHARED}.input_linear.weight"):
            own = name.removesuffix(f"{_SHARED}.input_linear.weight") + mlp
            found |= conversions.halves(entry, f"{own}.gate_proj.weight", f"{own}.up_proj.weight")
            continue
        own = name.replace(f"{_SHARED}.output_linear", f"{mlp}.down_proj").replace(
            f"{_EXPERTS}.router.layer", "mlp.gate"
        )
        found[own] = replace(entry, name=own)
    return mamba_mixer.convert_folder(found, spec)


def _convert_gguf(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    return mamba_mixer.split_tensors(conversions.interleaved_heads(tensors, spec), spec)


ARCHITECTURE = Architecture(
    "granitemoehybrid",
    FolderFormat(
        "GraniteMoeHybridForCausalLM",
        _read_folder,
        fields=DEFAULTS.fields
        | mamba_mixer.FIELDS
        | granite.FIELDS
        | {*EXPERTS.keys, "num_experts_per_tok", "shared_intermediate_size", "position_embedding_type"},
        harmless=mamba_mixer.HARMLESS,
        convert=_convert_folder,
    ),
    GgufFormat(
        "granitehybrid",
        read_gguf,
        keys=mamba_mixer.KEYS | granite.KEYS,
        names=mamba_mixer.gguf_names("mamba"),
        convert=_convert_gguf,
        with_or_without_experts=True,
    ),
    PARAMETERS,
    mamba_mixer.forward,
)
