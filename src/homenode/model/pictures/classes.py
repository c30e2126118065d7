"""The classes of models that see, as config.json names them, and the family of each. It imports nothing else."""

from __future__ import annotations

from collections.abc import Mapping

# By family: the classes of its models. Its file has its name.
CLASSES: Mapping[str, tuple[str, ...]] = {
    "qwen2_vl": ("Qwen2VLForConditionalGeneration",),
    "qwen2_5_vl": ("Qwen2_5_VLForConditionalGeneration",),
    "glm4v": (
        "Glm4vForConditionalGeneration",
        "Glm4vMoeForConditionalGeneration",
        "Glm46VForConditionalGeneration",
        "GlmOcrForConditionalGeneration",
    ),
    "qwen3_vl": (
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
    ),
    "deepseek_ocr": ("DeepseekOCRForCausalLM",),
    "deepseek_ocr2": ("DeepseekOCR2ForCausalLM", "DeepseekOcr2ForConditionalGeneration"),
    "gemma3": ("Gemma3ForConditionalGeneration",),
    "gemma4": ("Gemma4ForConditionalGeneration",),
    "idefics3": ("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"),
    "kimi_vl": (
        "KimiVLForConditionalGeneration",
        "KimiK25ForConditionalGeneration",
        "Kimi_K25ForConditionalGeneration",
    ),
    "lfm2_vl": ("Lfm2VlForConditionalGeneration",),
    "lighton_ocr": ("LightOnOcrForConditionalGeneration", "LightOnOCRForConditionalGeneration"),
    "llama4": ("Llama4ForConditionalGeneration",),
    "internvl": ("InternVLForConditionalGeneration",),
    "internvl_chat": ("InternVLChatModel",),
    "qianfan_ocr": ("QianfanOCRForConditionalGeneration",),
    "llava": ("LlavaForConditionalGeneration", "LlavaNextForConditionalGeneration"),
    "llava_onevision": ("LlavaOnevisionForConditionalGeneration",),
    "minicpm_v": ("MiniCPMV",),
    "minicpm_v4_6": ("MiniCPMV4_6ForConditionalGeneration",),
    "mistral3": ("Mistral3ForConditionalGeneration",),
}
FAMILY_OF_CLASS: Mapping[str, str] = {name: family for family, classes in CLASSES.items() for name in classes}
# By family: tokens that stand for pictures, and that config.json does not name.
TOKENS: Mapping[str, tuple[str, ...]] = {
    "internvl_chat": ("<IMG_CONTEXT>",),
    "minicpm_v": ("<unk>",),
}
# What the projectors of GGUF files (`clip.projector_type`) are called, and the family of each.
PROJECTORS: Mapping[str, str] = {
    "qwen2vl_merger": "qwen2_vl",
    "qwen2.5vl_merger": "qwen2_5_vl",
    "qwen3vl_merger": "qwen3_vl",
    "glm4v": "glm4v",
    "deepseekocr": "deepseek_ocr",
    "deepseekocr2": "deepseek_ocr2",
    "gemma3": "gemma3",
    "gemma4v": "gemma4",
    "idefics3": "idefics3",
    "internvl": "internvl_chat",
    "lightonocr": "lighton_ocr",
    "pixtral": "mistral3",
    "kimivl": "kimi_vl",
    "kimik25": "kimi_vl",
    "lfm2": "lfm2_vl",
    "llama4": "llama4",
    "minicpmv4_6": "minicpm_v4_6",
    "resampler": "minicpm_v",
}
