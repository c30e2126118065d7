"""The text of DeepSeek-OCR: DeepSeek MoE 16B, of which converters to GGUF leave the rows of q and k as they are."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import deepseek
from homenode.model.architectures.architecture import GgufFormat
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

_TURNED = "rope.dimension_count"  # 0: the figure of latent attention, which there is none of; whole heads turn


def _read_gguf(config: GgufConfig) -> ModelSpec:
    if config.fields.integer(_TURNED, 0, minimum=0) == 0:
        config = replace(config, fields=config.fields.with_value(_TURNED, None))
    spec = config.refuse_window(config.decoder())
    return replace(spec, moe=config.moe(spec, normalise=False, scores=(1,)))


ARCHITECTURE = deepseek.ARCHITECTURE.of_class(
    "deepseek_ocr",
    "DeepseekOcr2TextModel",
    model_types=("deepseek_ocr2_text", "deepseek_ocr2"),
    picture_classes=("DeepseekOCRForCausalLM", "DeepseekOCR2ForCausalLM", "DeepseekOcr2ForConditionalGeneration"),
    harmless=deepseek.ARCHITECTURE.folder.harmless,
    gguf=GgufFormat("deepseek2-ocr", _read_gguf),
)
