"""Granite 3 with experts: Granite's block with a mixture of experts in every layer, some sizes with one that every
token uses beside it. Folders stack the matrices of experts, gate above up.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import common, granite
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.common import Tensors, layer_weight
from homenode.model.config.folder_config import ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.formats.reading import damaged
from homenode.model.formats.stacked_experts import StackedExperts
from homenode.model.formats.tensor_parts import rows_of
from homenode.model.spec import ModelSpec, TensorEntry

NAME, SHARED = "granitemoe", "granitemoeshared"
EXPERTS = ExpertDefaults(experts=8, experts_per_token=2, size=0, keys=("num_local_experts",))
_MOE = "block_sparse_moe."
_EXPERT = _MOE + "experts.{expert}"
_STACKS = StackedExperts(
    _MOE + "input_linear",
    _MOE + "output_linear",
    (_EXPERT + ".gate_proj", _EXPERT + ".up_proj", _EXPERT + ".down_proj"),
)
_SHARED, _BOTH = "model.layers.{layer}.shared_mlp.", "shared_mlp.input_linear.weight"
PARAMETERS = (
    *common.EMBEDDING_AND_HEAD,
    *common.ATTENTION,
    *common.QKV_BIASES,
    *common.OUTPUT_BIAS,
    *common.POST_NORM,
    layer_weight("router", _MOE + "router.layer", "ffn_gate_inp", "experts", "hidden"),
    *common.gated_matrices("expert", _EXPERT, "exps", "expert_intermediate", common.has_experts),
    *common.gated_matrices("shared", "shared_mlp", "shexp", "shared_intermediate", common.has_shared_expert),
)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json of a model without an expert that every token uses."""
    return _read(config, NAME, 0)


def read_shared_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json of a model with one, if its size is not 0."""
    size = config.fields.integer("shared_intermediate_size", 0, minimum=0, maximum=limits.MOST_INTERMEDIATE)
    return _read(config, SHARED, size)


def _read(config: FolderConfig, name: str, shared: int) -> ModelSpec:
    config.refuse_activation("hidden_act", "silu")
    config.refuse_other_layers(window=None)
    bias = config.fields.boolean("attention_bias", False)
    spec = replace(config.decoder(name, granite.DEFAULTS), attention_bias=bias, output_bias=bias)
    moe = config.moe(EXPERTS, normalise=True, size=spec.intermediate_size, shared=shared)
    return granite.read_multipliers(config, replace(spec, moe=moe))


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    return read_gguf_as(config, NAME)


def read_gguf_as(config: GgufConfig, name: str) -> ModelSpec:
    """The same, the architecture being called `name`."""
    spec = granite.read_gguf_as(config, name)
    inner = spec.intermediate_size
    moe = config.moe(spec, "model.layers.{layer}.block_sparse_moe.router.layer.weight", size=inner)
    if "model.layers.0.shared_mlp.gate_proj.weight" in config.tensors:
        shared = config.fields.integer("expert_shared_feed_forward_length", inner, maximum=limits.MOST_INTERMEDIATE)
        moe = replace(moe, shared_intermediate_size=shared)
    return replace(spec, moe=moe)


def split_folder(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """A folder's tensors, what is stacked as an entry for each matrix."""
    size, found = spec.moe.shared_intermediate_size if spec.moe else 0, {}
    for name, entry in _STACKS.split(tensors, spec).items():
        module, both, _ = name.partition(_BOTH)
        if not both or not size:
            found[name] = entry
            continue
        if len(entry.shape) != 2 or entry.shape[0] != 2 * size:
            raise damaged(entry.file, f"shape of {name}", seen=list(entry.shape), wanted=f"{2 * size} rows")
        for first, part in ((0, "gate_proj"), (size, "up_proj")):
            own = f"{module}shared_mlp.{part}.weight"
            found[own] = rows_of(entry, own, first, size)
    return found


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "GraniteMoeForCausalLM",
        read_folder,
        fields=granite.FIELDS | {"num_local_experts", "num_experts_per_tok"},
        modules={_SHARED + "output_linear": _SHARED + "down_proj"},
        convert=split_folder,
    ),
    GgufFormat("granitemoe", read_gguf, keys=granite.KEYS, convert=common.interleaved_heads),
    PARAMETERS,
    granite.forward,
)
