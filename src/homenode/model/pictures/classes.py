"""The classes of models that see, as config.json names them, and the family of each. It imports nothing else."""

from __future__ import annotations

from collections.abc import Mapping

# By family: the classes of its models. Its file has its name.
CLASSES: Mapping[str, tuple[str, ...]] = {
    "qwen2_5_vl": ("Qwen2_5_VLForConditionalGeneration",),
    "qwen3_vl": (
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
    ),
    "gemma3": ("Gemma3ForConditionalGeneration",),
    "gemma4": ("Gemma4ForConditionalGeneration",),
    "idefics3": ("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"),
    "internvl": ("InternVLForConditionalGeneration",),
    "llava": ("LlavaForConditionalGeneration", "LlavaNextForConditionalGeneration"),
    "mistral3": ("Mistral3ForConditionalGeneration",),
}
FAMILY_OF_CLASS: Mapping[str, str] = {name: family for family, classes in CLASSES.items() for name in classes}
