"""Qwen 3.5 and later, the text of the dense models: gated delta nets, and attention with a gate in each fourth
layer.
"""

from __future__ import annotations

from homenode.model.architectures import delta_net, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.config.folder_config import Defaults

DEFAULTS = Defaults(max_position=32768, heads=16, kv_heads=4, vocab=248320, head_dim=256, rotary_share=0.25)
PARAMETERS = (*delta_net.PARAMETERS, *tables.GATE_UP_DOWN)


ARCHITECTURE = Architecture(
    "qwen3_5",
    FolderFormat(
        "Qwen3_5ForCausalLM",
        lambda config: delta_net.read_folder(config, config.decoder(DEFAULTS, rotates_part=True)),
        fields=delta_net.FIELDS,
        harmless=delta_net.HARMLESS,
        model_types=("qwen3_5_text",),
        picture_classes=("Qwen3_5ForConditionalGeneration", "MiniCPMV4_6ForConditionalGeneration"),
        convert=delta_net.convert_folder,
    ),
    GgufFormat(
        "qwen35",
        lambda config: delta_net.read_gguf(config, config.decoder(), reordered=True),
        keys=delta_net.KEYS,
        names=delta_net.NAMES,
        convert=delta_net.split_tensors,
    ),
    PARAMETERS,
    delta_net.forward,
)
