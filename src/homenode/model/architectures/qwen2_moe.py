"""Qwen 2 MoE (and 1.5): Qwen 2's block with a mixture of experts and one expert that every token uses; some layers may
have an MLP instead.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import qwen2, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_kinds import WINDOW_FIELDS, window_in_use
from homenode.model.architectures.pre_norm import forward
from homenode.model.architectures.tables import layer_weight
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.formats import limits
from homenode.model.spec import ModelSpec, MoeSpec, TensorEntry, Tensors

DEFAULTS = Defaults(max_position=32768)
EXPERTS = ExpertDefaults(experts=60, experts_per_token=4, size=1408, keys=("num_experts",))
EXPERT_FIELDS = EXPERTS.fields | {"norm_topk_prob", "decoder_sparse_step", "mlp_only_layers"}
_SHARED = "mlp.shared_expert"
SHARED_EXPERT = (
    layer_weight(
        "shared_router", f"{_SHARED}_gate", "ffn_gate_inp_shexp", "one", "hidden", when=tables.has_shared_expert
    ),
    *tables.gated_matrices("shared_", _SHARED, "_shexp", "shared_intermediate", tables.has_shared_expert),
)
PARAMETERS = (*qwen2.PARAMETERS, *tables.EXPERTS, *SHARED_EXPERT)


def read_experts(
    config: FolderConfig, defaults: ExpertDefaults, layers: int, shared: int = 0, *, normalise: bool = False
) -> MoeSpec | None:
    """The experts of a Qwen; None where all layers are said to have an MLP. `shared`: of an expert that every token
    uses, the size where the file does not say; `normalise`: whether weights add up to 1, likewise.
    """
    fields = config.fields
    _, experts = config.experts(defaults)
    step, listed = fields.integer("decoder_sparse_step", 1), set(fields.integers("mlp_only_layers"))
    dense = tuple(layer for layer in range(layers) if layer in listed or experts == 0 or (layer + 1) % step)
    if len(dense) == layers:
        return None
    normalise = fields.boolean("norm_topk_prob", normalise)
    if shared:
        shared = fields.integer("shared_expert_intermediate_size", shared, maximum=limits.MOST_INTERMEDIATE)
    return config.moe(defaults, normalise=normalise, dense=dense, shared=shared)


def _read_folder(config: FolderConfig) -> ModelSpec:
    spec = config.decoder(DEFAULTS)

    def lower_alternating(layers: int) -> tuple[bool, ...]:
        first = config.fields.integer("max_window_layers", qwen2.UPPER, minimum=0)
        return tuple(layer < first and layer % 2 == 0 for layer in range(layers))

    spec = config.with_window_in(spec, window_in_use(config), lower_alternating)
    moe = read_experts(config, EXPERTS, spec.num_layers, shared=5632)
    return replace(spec, attention_bias=config.fields.boolean("qkv_bias", True), moe=moe)


def with_shared_routers(tensors: Tensors, _spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors of a GGUF file. What scales the shared expert is a matrix of one row, which GGUF files store as a
    vector.
    """
    return {
        name: replace(entry, shape=(1, *entry.shape))
        if name.endswith(f"{_SHARED}_gate.weight") and len(entry.shape) == 1
        else entry
        for name, entry in tensors.items()
    }


ARCHITECTURE = Architecture(
    "qwen2_moe",
    FolderFormat(
        "Qwen2MoeForCausalLM",
        _read_folder,
        fields=DEFAULTS.fields | WINDOW_FIELDS | EXPERT_FIELDS | {"qkv_bias", "shared_expert_intermediate_size"},
    ),
    GgufFormat("qwen2moe", lambda config: config.uniform_mixture(normalise=False), convert=with_shared_routers),
    PARAMETERS,
    forward,
)
