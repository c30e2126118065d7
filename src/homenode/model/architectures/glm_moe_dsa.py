"""GLM-5: DeepSeek V3.2 in GLM's shapes. Layers may take the tokens that the indexer of an earlier one has chosen."""

from __future__ import annotations

from homenode.model.architectures import deepseek_v3, deepseek_v32, latent_attention, token_indexer
from homenode.model.architectures.architecture import Architecture, FolderFormat
from homenode.model.architectures.latent_attention import LatentHeads
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(max_position=202752, heads=64, vocab=154880, bos_id=0, eos_id=1, norm_eps=1e-5)
HEADS = LatentHeads(query_rank=2048, latent=512, plain=192, rotary=64, value=256)
INDEX_HEADS = 32


def _read_folder(config: FolderConfig) -> ModelSpec:
    spec = deepseek_v32.read_folder_as(config, DEFAULTS, HEADS, deepseek_v3.EXPERTS, (1, 1))
    return token_indexer.read_folder(
        config, spec, INDEX_HEADS, adjacent=config.fields.boolean("indexer_rope_interleave", True), shares=True
    )


ARCHITECTURE = Architecture(
    "glm_moe_dsa",
    FolderFormat(
        "GlmMoeDsaForCausalLM",
        _read_folder,
        fields=deepseek_v32.FIELDS | token_indexer.SHARING_FIELDS | {"indexer_rope_interleave"},
        convert=latent_attention.split_folder_heads,
    ),
    latent_attention.gguf_format(
        "glm-dsa",
        lambda config: token_indexer.read_gguf(config, deepseek_v3.read_gguf(config), adjacent=True),
        more_keys=token_indexer.KEYS,
    ),
    deepseek_v32.PARAMETERS,
    latent_attention.forward,
)
