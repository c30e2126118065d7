"""Granite 3 with experts: Granite's block with a mixture of experts in every layer, some sizes with one that every
token uses beside it. Folders stack the matrices of experts, gate above up.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import conversions, granite, llama, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat
from homenode.model.architectures.pre_norm import forward
from homenode.model.architectures.tables import layer_weight
from homenode.model.config.folder_config import ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.formats.stacked_experts import StackedExperts
from homenode.model.spec import ModelSpec, TensorEntry, Tensors

DEFAULTS = replace(granite.DEFAULTS, mlp_bias=None)
EXPERTS = ExpertDefaults(experts=8, experts_per_token=2, size=0, keys=("num_local_experts",))
_MOE = "block_sparse_moe."
_EXPERT = _MOE + "experts.{expert}"
_STACKS = StackedExperts(_MOE + "input_linear", _MOE + "output_linear", _EXPERT)
_SHARED, _BOTH = "model.layers.{layer}.shared_mlp.", "shared_mlp.input_linear.weight"
PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    *tables.ATTENTION_AND_BIASES,
    *tables.POST_NORM,
    layer_weight("router", _MOE + "router.layer", "ffn_gate_inp", "experts", "hidden"),
    *tables.gated_matrices("expert_", _EXPERT, "_exps", "expert_intermediate", tables.has_experts),
    *tables.gated_matrices("shared_", "shared_mlp", "_shexp", "shared_intermediate", tables.has_shared_expert),
)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json of a model without an expert that every token uses."""
    return read_folder_with(config, 0)


def read_folder_with(config: FolderConfig, shared: int) -> ModelSpec:
    """The same of a model with one of this size, if that is not 0."""
    spec = config.uniform_decoder(DEFAULTS)
    moe = config.moe(EXPERTS, normalise=True, size=spec.intermediate_size, shared=shared)
    return granite.read_multipliers(config, replace(spec, moe=moe))


def _read_gguf(config: GgufConfig) -> ModelSpec:
    spec = granite.read_gguf(config)
    inner = spec.intermediate_size
    moe = config.moe(spec, "model.layers.{layer}.block_sparse_moe.router.layer.weight", size=inner)
    if "model.layers.0.shared_mlp.gate_proj.weight" in config.tensors:
        shared = config.fields.integer("expert_shared_feed_forward_length", inner, maximum=limits.MOST_INTERMEDIATE)
        moe = replace(moe, shared_intermediate_size=shared)
    return replace(spec, moe=moe)


def split_folder(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """A folder's tensors, what is stacked as an entry for each matrix."""
    found: dict[str, TensorEntry] = {}
    for name, entry in _STACKS.split(tensors, spec).items():
        module, both, _ = name.partition(_BOTH)
        own = f"{module}shared_mlp."
        found |= conversions.halves(entry, own + "gate_proj.weight", own + "up_proj.weight") if both else {name: entry}
    return found


ARCHITECTURE = Architecture(
    "granitemoe",
    FolderFormat(
        "GraniteMoeForCausalLM",
        read_folder,
        fields=DEFAULTS.fields | EXPERTS.fields | granite.FIELDS,
        modules={_SHARED + "output_linear": _SHARED + "down_proj"},
        convert=split_folder,
    ),
    llama.gguf_format("granitemoe", _read_gguf, keys=granite.KEYS),
    PARAMETERS,
    forward,
)
