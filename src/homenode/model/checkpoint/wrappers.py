"""Wrappers: the classes of models that see or hear around a text that may be of any architecture, and where their
config.json tells of it. Those whose text is of one architecture are `picture_classes` of that.
"""

from __future__ import annotations

from collections.abc import Mapping

# Where config.json may tell of the text, a dot between a table and one in it.
PLACES = ("text_config", "llm_config", "language_config", "thinker_config.text_config")
_CONDITIONAL = (
    "AudioFlamingo3 AyaVision Cohere2Vision DeepseekVL DeepseekVLHybrid Exaone4_5_ FastVlm FunAsrNano GlmAsr GotOcr2 "
    "Granite4Vision GraniteDocling GraniteSpeech GraniteSpeechPlus HyperCLOVAXVisionV2 Idefics2 Idefics3 InternS1 "
    "InternVL Janus Lfm2Vl Lfm3Vl LightOnOCR LightOnOcr Llava LlavaNext LlavaNextVideo LlavaOnevision MiniCPMOcr "
    "MiniCPMV4_7 Mistral3 MossTranscribeDiarize MusicFlamingo Ovis2 PerceptionLM QianfanOCR Qwen2Audio Qwen3ASR "
    "SmolVLM VibeVoiceAsr VideoLlama3 VideoLlava VipLlava Voxtral"
)
ANY_TEXT: Mapping[str, str] = {
    **dict.fromkeys((f"{name}ForConditionalGeneration" for name in _CONDITIONAL.split()), "text_config"),
    **dict.fromkeys(
        "H2OVLChatModel InternVLChatModel Llama_Nemotron_Nano_VL NVLM_D NemotronH_Nano_VL_V2 "
        "NemotronH_Omni_Reasoning_V3 Ovis Ovis2_5".split(),
        "llm_config",
    ),
    **dict.fromkeys("DeepseekVLV2ForCausalLM MultiModalityCausalLM".split(), "language_config"),
}
# Classes whose config.json tells of the text in the whole: by its `version`, what that is.
BY_VERSION: Mapping[str, Mapping[str, str]] = {
    "MiniCPMV": {"2.0": "minicpm", "2.5": "llama", "2.6": "qwen2", "4.0": "llama", "4.5": "qwen3"},
    "MiniCPMO": {"2.6": "qwen2", "4.5": "qwen3"},
}
# By `model_type`: the figures that published files of such models leave out, as they are those of the configuration
# class. A model of text alone says them.
_NAMES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)
SIZES: Mapping[str, Mapping[str, int]] = {
    kind: {name: size for name, size in zip(_NAMES, sizes, strict=True) if size}
    for kind, sizes in {
        "cohere": (8192, 22528, 40, 64, 0, 256000),
        "cohere2": (8192, 22528, 40, 64, 0, 256000),
        "emu3_text_model": (4096, 14336, 32, 32, 8, 184622),
        "ernie4_5_vl_moe_text": (2560, 12288, 28, 20, 4, 103424),
        "glm4v_text": (4096, 13696, 40, 32, 2, 151552),
        "glm_ocr_text": (1024, 4096, 16, 16, 8, 59392),
        "granite": (4096, 11008, 32, 32, 0, 32000),
        "granite4_vision_text": (4096, 11008, 32, 32, 0, 32000),
        "granite_docling_text": (1024, 2048, 28, 16, 4, 133800),
        "llama": (4096, 11008, 32, 32, 0, 32000),
        "mistral": (4096, 14336, 32, 32, 8, 32000),
        "mixtral": (4096, 14336, 32, 32, 8, 32000),
        "mllama_text_model": (4096, 14336, 40, 32, 8, 128256),
        "phi3": (3072, 8192, 32, 32, 0, 32064),
        "qwen2": (4096, 22016, 32, 32, 32, 151936),
        "qwen3": (4096, 22016, 32, 32, 32, 151936),
    }.items()
}
