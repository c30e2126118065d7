"""DeepSeek V3, R1 and V3.1, and Kimi K2: latent attention, first layers with an MLP, then experts scored by a sigmoid
and chosen with a bias, in groups, beside one that every token uses.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import latent_attention, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat
from homenode.model.architectures.deepseek_v2 import is_glm
from homenode.model.architectures.latent_attention import LatentHeads
from homenode.model.config.folder_config import SIGMOID_MOE_FIELDS, Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats.fields import Fields
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(max_position=4096, heads=128, vocab=129280, bos_id=0, eos_id=1)
HEADS = LatentHeads(query_rank=1536, latent=512, plain=128, rotary=64, value=128)
EXPERTS = ExpertDefaults(experts=256, experts_per_token=8, size=2048, keys=("n_routed_experts", "num_local_experts"))
PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    *latent_attention.PARAMETERS,
    *tables.GATED_MLP,
    *tables.CHOSEN_WITH_BIAS,
)
EVERY_LAYER = {"moe_layer_freq": 1}  # behind those in front has experts
FIELDS = latent_attention.FIELDS | SIGMOID_MOE_FIELDS | EXPERTS.fields | {"moe_layer_freq"}


def _read_folder(config: FolderConfig) -> ModelSpec:
    spec = latent_attention.read_folder(config, DEFAULTS, HEADS)
    config.fields.refuse_others(EVERY_LAYER)
    return replace(spec, moe=config.sigmoid_moe(EXPERTS, spec.num_layers, dense=3, scale=2.5, groups=(8, 4)))


def dense_layers(fields: Fields, layers: int, default: int) -> int:
    """Return how many layers in front have an ordinary MLP, by `mlp_layer_types` where config.json has it. `default`:
    where it says nothing.
    """
    kinds = fields.texts("mlp_layer_types")
    if not kinds:
        return default
    dense = kinds.index("sparse") if "sparse" in kinds else len(kinds)
    if len(kinds) != layers or kinds != (*["dense"] * dense, *["sparse"] * (layers - dense)):
        raise fields.wrong("mlp_layer_types", kinds, f"{layers} values, first dense, then sparse")
    return dense


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file, in which converters leave out that weights of experts do not add up to 1."""
    spec = latent_attention.read_gguf(config)
    return config.with_moe(spec, normalise=False, scores=(2,), epsilon=1e-20)


def _scores_by_sigmoid(fields: Fields) -> bool:
    return fields.integer("expert_gating_func", 1, minimum=0) == 2 and not is_glm(fields)


ARCHITECTURE = Architecture(
    "deepseek_v3",
    FolderFormat(
        "DeepseekV3ForCausalLM",
        _read_folder,
        fields=FIELDS,
        model_types=("kimi_k2",),
        picture_classes=(
            "KimiK25ForConditionalGeneration",
            "Kimi_K25ForConditionalGeneration",
            "KimiVLForConditionalGeneration",
        ),
        convert=latent_attention.split_folder_heads,
    ),
    latent_attention.gguf_format("deepseek2", read_gguf, _scores_by_sigmoid),
    PARAMETERS,
    latent_attention.forward,
)
