"""GLM-5: DeepSeek V3.2 in GLM's shapes. Layers may share the choice of the indexer in another one, which changes nothing
as long as all tokens are chosen.
"""

from __future__ import annotations

from homenode.model.architectures import deepseek_v3, deepseek_v32, latent_attention
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.latent_attention import LatentHeads
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

NAME = "glm_moe_dsa"
DEFAULTS = Defaults(max_position=202752, heads=64, vocab=154880, bos_id=0, eos_id=1, norm_eps=1e-5)
HEADS = LatentHeads(query_rank=2048, latent=512, plain=192, rotary=64, value=256)
SHARED_CHOICE = "of which layers share the choice of an indexer, which is left unread"


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    return deepseek_v32.read_folder_as(config, NAME, DEFAULTS, HEADS, deepseek_v3.EXPERTS, (1, 1))


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    return deepseek_v32.read_gguf_as(config, NAME)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "GlmMoeDsaForCausalLM",
        read_folder,
        fields=deepseek_v32.FIELDS,
        harmless=deepseek_v32.HARMLESS
        | dict.fromkeys(
            (
                "indexer_types",
                "index_topk_pattern",
                "index_topk_freq",
                "index_skip_topk_offset",
                "indexer_rope_interleave",
            ),
            SHARED_CHOICE,
        ),
        convert=deepseek_v32.split_folder,
    ),
    GgufFormat(
        "glm-dsa",
        read_gguf,
        keys=deepseek_v32.KEYS,
        names=latent_attention.GGUF_NAMES,
        convert=deepseek_v32.split_gguf,
    ),
    deepseek_v3.PARAMETERS,
    latent_attention.forward,
)
