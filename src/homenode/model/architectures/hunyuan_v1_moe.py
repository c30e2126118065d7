"""Hunyuan MoE (A13B): Hunyuan's attention with experts in every layer, beside an MLP that every token uses."""

from __future__ import annotations

from dataclasses import replace

from homenode.errors import CheckpointError
from homenode.model.architectures import hunyuan_v1_dense, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.config.folder_config import FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.formats.fields import Fields
from homenode.model.spec import ModelSpec, MoeSpec

_ROUTER = "mlp.gate.wg"
PARAMETERS = (
    *hunyuan_v1_dense.ATTENTION,
    *tables.POST_NORM,
    replace(tables.EXPERTS[0], name=f"model.layers.{{layer}}.{_ROUTER}.weight"),
    *tables.EXPERTS[1:],
    *tables.gated_matrices("shared_", "mlp.shared_mlp", "_shexp", "shared_intermediate", tables.has_shared_expert),
)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json. All its experts, and the MLP beside them, are of one size."""
    spec, fields = hunyuan_v1_dense.read_folder(config), config.fields
    moe = MoeSpec(
        num_experts=fields.integer("num_experts", 1, maximum=limits.MOST_EXPERTS),
        experts_per_token=_of_all_layers(fields, "moe_topk", spec.num_layers),
        intermediate_size=spec.intermediate_size,
        normalise=True,
        shared_intermediate_size=spec.intermediate_size,
    )
    return replace(spec, moe=moe)


def _of_all_layers(fields: Fields, key: str, layers: int) -> int:
    """A number, which may be a list of one for each layer; 1 where the file does not say."""
    try:
        return fields.integer(key, 1, maximum=limits.MOST_EXPERTS)
    except CheckpointError:
        listed = set(fields.integers(key)[:layers])
    if len(listed) != 1:
        raise fields.wrong(key, sorted(listed), "the same number for all layers")
    return listed.pop()


def _read_gguf(config: GgufConfig) -> ModelSpec:
    spec = config.uniform_decoder()
    size = spec.intermediate_size
    moe = config.moe(spec, f"model.layers.{{layer}}.{_ROUTER}.weight", size=size)
    shared = config.fields.integer("expert_shared_feed_forward_length", size, maximum=limits.MOST_INTERMEDIATE)
    return replace(spec, moe=replace(moe, shared_intermediate_size=shared))


ARCHITECTURE = Architecture(
    "hunyuan_v1_moe",
    FolderFormat(
        "HunYuanMoEV1ForCausalLM",
        read_folder,
        fields=hunyuan_v1_dense.FIELDS | {"num_experts", "moe_topk"},
        harmless=hunyuan_v1_dense.HARMLESS
        | dict.fromkeys(
            ("moe_intermediate_size", "num_shared_expert", "norm_topk_prob"), "transformers does not read it"
        ),
    ),
    GgufFormat("hunyuan-moe", _read_gguf),
    PARAMETERS,
    hunyuan_v1_dense.forward,
)
