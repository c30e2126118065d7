"""Qwen 3.5 and later, the text of the dense models: gated delta nets, and attention with a gate in each fourth layer."""

from __future__ import annotations

from homenode.model.architectures import common, delta_net
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

NAME = "qwen3_5"
DEFAULTS = Defaults(max_position=32768, heads=16, kv_heads=4, vocab=248320, head_dim=256, rotary_share=0.25)
PARAMETERS = (*delta_net.PARAMETERS, *common.GATE_UP_DOWN)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    spec = config.decoder(NAME, DEFAULTS, rotates_part=True)
    return delta_net.read_folder(config, spec)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    spec = config.decoder(NAME)
    return delta_net.read_gguf(config, spec, reordered=True)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "Qwen3_5ForCausalLM",
        read_folder,
        fields=delta_net.FIELDS,
        harmless=delta_net.HARMLESS,
        model_types=("qwen3_5_text",),
        picture_classes=("Qwen3_5ForConditionalGeneration", "MiniCPMV4_6ForConditionalGeneration"),
        convert=delta_net.convert_folder,
    ),
    GgufFormat("qwen35", read_gguf, keys=delta_net.KEYS, names=delta_net.NAMES, convert=delta_net.split_tensors),
    PARAMETERS,
    delta_net.forward,
)
