"""ERNIE 4.5 MoE: ERNIE 4.5 with experts scored by a softmax and chosen with a bias, beside one that every token uses;
some layers have an MLP instead. ERNIE 4.5 VL has as many experts again for pictures, which text leaves alone.
"""

from __future__ import annotations

import re
from dataclasses import replace

from homenode.model.architectures import ernie4_5, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.formats.tensor_parts import rows_of, transposed
from homenode.model.spec import ModelSpec, TensorEntry, Tensors

DEFAULTS = Defaults(
    max_position=131072, heads=20, kv_heads=4, vocab=103424, bos_id=1, eos_id=2, norm_eps=1e-5, theta=5e5
)
EXPERTS = ExpertDefaults(experts=64, experts_per_token=6, size=1536, keys=("moe_num_experts", "num_experts"))
_BIAS = "mlp.moe_statics.e_score_correction_bias"
PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    *tables.ATTENTION,
    *tables.GATED_MLP,
    *tables.chosen_with_bias(_BIAS),
)


# What ERNIE 4.5 VL says of experts for text and of those for pictures, in this order.
_OF_BOTH = ("moe_num_experts", "moe_intermediate_size", "moe_layer_start_index", "moe_layer_end_index")
_ROUTER, _PICTURE_ROUTER = "mlp.gate.weight", "mlp.gate.weight_1"
_EXPERT = re.compile(r".+\.mlp\.experts\.([0-9]{1,5})\..+")


def _of_text(config: FolderConfig) -> FolderConfig:
    """The same with what is said of experts for text alone."""
    fields = config.fields
    for key in _OF_BOTH:
        if isinstance(both := fields.value(key), list) and both:
            fields = fields.with_value(key, both[0])
    return replace(config, fields=fields)


def _dense_layers(config: FolderConfig, layers: int) -> tuple[int, ...]:
    """Return those with an MLP, by `mlp_layer_types` where config.json has it."""
    fields = config.fields
    if kinds := fields.texts("mlp_layer_types"):
        if len(kinds) != layers or not set(kinds) <= {"dense", "sparse"}:
            raise fields.wrong("mlp_layer_types", kinds, f"{layers} values, each dense or sparse")
        return tuple(layer for layer, kind in enumerate(kinds) if kind == "dense")
    first = fields.integer("moe_layer_start_index", 1, minimum=0, maximum=limits.MOST_LAYERS)
    every = fields.integer("moe_layer_interval", 1)
    last = fields.optional_integer("moe_layer_end_index", minimum=-1, maximum=limits.MOST_LAYERS)
    last = layers - 1 if last in (None, -1) else last
    return tuple(layer for layer in range(layers) if (layer + 1) % every or not first <= layer <= last)


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = _of_text(config)
    fields = config.fields
    fields.refuse_others({"use_bias": False})
    spec = config.uniform_decoder(DEFAULTS)
    moe = config.moe(
        EXPERTS,
        normalise=True,
        dense=_dense_layers(config, spec.num_layers),
        shared_experts=config.shared_experts("moe_num_shared_experts", 2),
    )
    used = fields.integer("moe_k", moe.experts_per_token, maximum=limits.MOST_EXPERTS)
    return replace(spec, moe=replace(moe, experts_per_token=used))


def with_bias_vectors(tensors: Tensors, _spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors, biases of the choice, which are stored as matrices of one row, as vectors."""
    return {
        name: replace(entry, shape=entry.shape[1:])
        if name.endswith(_BIAS) and len(entry.shape) == 2 and entry.shape[0] == 1
        else entry
        for name, entry in tensors.items()
    }


def _convert_folder(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors without those of experts for pictures; beside these, those that score experts are turned."""
    found = dict(tensors)
    if spec.moe is not None and any(name.endswith(_PICTURE_ROUTER) for name in tensors):
        found = {}
        for name, entry in tensors.items():
            expert = _EXPERT.fullmatch(name)
            if name.endswith(_PICTURE_ROUTER) or (expert and int(expert[1]) >= spec.moe.num_experts):
                continue
            if name.endswith(_ROUTER) and len(entry.shape) == 2:
                entry = transposed(entry, name)
            elif name.endswith(_BIAS) and entry.shape[:1] == (2,):
                entry = rows_of(entry, name, 0, 1)
            found[name] = entry
    return with_bias_vectors(found, spec)


ARCHITECTURE = Architecture(
    "ernie4_5_moe",
    FolderFormat(
        "Ernie4_5_MoeForCausalLM",
        _read_folder,
        fields=(DEFAULTS.fields | EXPERTS.fields).union(
            "use_bias moe_k moe_num_shared_experts moe_layer_start_index moe_layer_end_index moe_layer_interval "
            "mlp_layer_types".split()
        ),
        harmless={"moe_norm_min": "the weights of chosen experts never add up to so little"},
        model_types=("ernie4_5_vl_moe_text",),
        picture_classes=("Ernie4_5_VLMoeForConditionalGeneration", "Ernie4_5_VL_MoeForConditionalGeneration"),
        convert=_convert_folder,
    ),
    GgufFormat("ernie4_5-moe", GgufConfig.uniform_mixture, convert=with_bias_vectors),
    PARAMETERS,
    ernie4_5.forward,
)
