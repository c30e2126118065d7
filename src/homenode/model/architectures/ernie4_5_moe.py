"""ERNIE 4.5 MoE: ERNIE 4.5 with experts scored by a softmax and chosen with a bias, beside one that every token uses;
some layers have an MLP instead.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import ernie4_5, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.conversions import Tensors
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.spec import ModelSpec, TensorEntry

DEFAULTS = Defaults(
    max_position=131072, heads=20, kv_heads=4, vocab=103424, bos_id=1, eos_id=2, norm_eps=1e-5, theta=5e5
)
EXPERTS = ExpertDefaults(experts=64, experts_per_token=6, size=1536, keys=("moe_num_experts", "num_experts"))
_BIAS = "mlp.moe_statics.e_score_correction_bias"
PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    *tables.ATTENTION,
    *tables.GATED_MLP,
    *tables.EXPERTS,
    replace(tables.CHOICE_BIAS, name=f"model.layers.{{layer}}.{_BIAS}"),
    *tables.SHARED_EXPERTS,
)


def _read_folder(config: FolderConfig) -> ModelSpec:
    fields = config.fields
    fields.refuse_others({"use_bias": False})
    spec = config.uniform_decoder(DEFAULTS)
    first = fields.integer("moe_layer_start_index", 1, minimum=0, maximum=limits.MOST_LAYERS)
    every = fields.integer("moe_layer_interval", 1)
    last = fields.optional_integer("moe_layer_end_index", minimum=-1, maximum=limits.MOST_LAYERS)
    last = spec.num_layers - 1 if last in (None, -1) else last
    dense = tuple(layer for layer in range(spec.num_layers) if (layer + 1) % every or not first <= layer <= last)
    moe = config.moe(EXPERTS, normalise=True, dense=dense)
    shared = fields.integer("moe_num_shared_experts", 2, minimum=0, maximum=limits.MOST_EXPERTS)
    used = fields.integer("moe_k", moe.experts_per_token, maximum=limits.MOST_EXPERTS)
    size = shared * moe.intermediate_size
    return replace(spec, moe=replace(moe, experts_per_token=used, shared_intermediate_size=size))


def _read_gguf(config: GgufConfig) -> ModelSpec:
    spec = config.uniform_decoder()
    return replace(spec, moe=config.moe(spec))


def with_bias_vectors(tensors: Tensors, _spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors, biases of the choice, which are stored as matrices of one row, as vectors."""
    return {
        name: replace(entry, shape=entry.shape[1:])
        if name.endswith(_BIAS) and len(entry.shape) == 2 and entry.shape[0] == 1
        else entry
        for name, entry in tensors.items()
    }


ARCHITECTURE = Architecture(
    "ernie4_5_moe",
    FolderFormat(
        "Ernie4_5_MoeForCausalLM",
        _read_folder,
        fields=frozenset(
            "use_bias moe_k moe_num_shared_experts moe_layer_start_index moe_layer_end_index moe_layer_interval".split()
        )
        | DEFAULTS.fields
        | EXPERTS.fields,
        harmless={"moe_norm_min": "the weights of chosen experts never add up to so little"},
        convert=with_bias_vectors,
    ),
    GgufFormat("ernie4_5-moe", _read_gguf, convert=with_bias_vectors),
    PARAMETERS,
    ernie4_5.forward,
)
