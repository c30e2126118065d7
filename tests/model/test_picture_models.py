"""Models that see pictures or hear, whose text may be of any family, beside transformers: folders as its classes save
them, and as makers publish theirs.
"""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from homenode.compute.ops import Backend
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.checkpoint.unknown_names import sees_more_than_text, unknown_names
from homenode.model.checkpoint.wrappers import SIZES as LEFT_OUT
from tests.model.parity import BOUND, Case, check_file, check_folder
from tests.model.transformers_models import SIZES, make_model, quiet_and_on_one_thread

pytestmark = pytest.mark.torch

EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": False}
LATENT = {
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
}  # fmt: skip
TOWER = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
EYES = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64, "patch_size": 4}
EARS = {
    "num_mel_bins": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32, "d_model": 32,
    "max_source_positions": 8,
}  # fmt: skip
HEARS = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
MROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}
QFORMER = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32, "num_hidden_layers": 1}
CODES = {"base_channels": 32, "channel_multiplier": [1, 1], "num_res_blocks": 1, "embed_dim": 4, "latent_channels": 4}


def whole(kind: str, text: dict[str, Any], parts: dict[str, Any], **more: Any) -> Case:
    """A model whose text has these figures besides those of every toy. `parts`: the tables of what else it has, or
    that of its `vision_config`.
    """
    others = parts if any(isinstance(part, dict) for part in parts.values()) else {"vision_config": parts}
    tables = deepcopy({"text_config": SIZES | text, **others})  # transformers writes into the tables that it is given
    return Case(kind, {**tables, "tie_word_embeddings": False, **more})


QWEN3 = {"model_type": "qwen3", "head_dim": 16}
CASES = {
    "llava": whole("llava", {"model_type": "llama"}, TOWER | {"model_type": "clip_vision_model"}),
    "llava-mistral": whole("llava", {"model_type": "mistral", "head_dim": 16}, TOWER | {"model_type": "pixtral"}),
    "internvl": whole("internvl", QWEN3, TOWER | {"image_size": [28, 28], "patch_size": [14, 14]}),
    "idefics2": whole("idefics2", {"model_type": "mistral", "pad_token_id": 0}, {
        "vision_config": TOWER,
        "perceiver_config": {"hidden_size": 64, "resampler_n_latents": 2, "resampler_depth": 1, "resampler_n_heads": 2,
            "resampler_head_dim": 16, "num_key_value_heads": 1}}),
    "idefics3": whole("idefics3", {"model_type": "llama"}, TOWER),
    "smolvlm": whole("smolvlm", {"model_type": "llama"}, TOWER),
    "mllama": whole("mllama",
        {"num_hidden_layers": 5, "cross_attention_layers": [1, 3], "pad_token_id": 0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        {"hidden_size": 32, "num_hidden_layers": 1, "num_global_layers": 1, "attention_heads": 2,
            "intermediate_size": 32, "vision_output_dim": 64, "image_size": 28, "intermediate_layers_indices": [0],
            "supported_aspect_ratios": [[1, 1]], "max_num_tiles": 1}),
    "glm46v": whole("glm46v", {"model_type": "glm4v_text", "rope_parameters": MROPE, "pad_token_id": 0},
        EYES | {"model_type": "glm4v_vision"}),
    "glm_ocr": whole("glm_ocr",
        {"head_dim": 32, "rope_parameters": MROPE | {"mrope_section": [4, 2, 2]}, "pad_token_id": 0}, EYES),
    "exaone4_5": whole("exaone4_5", {"model_type": "exaone4", "sliding_window": 6, "sliding_window_pattern": 3},
        EYES | {"num_key_value_heads": 1, "fullatt_block_indexes": [0]}),
    "granite4_vision": whole("granite4_vision",
        {"embedding_multiplier": 3.0, "logits_scaling": 0.6, "residual_multiplier": 0.5, "attention_multiplier": 0.1},
        {"vision_config": TOWER | {"model_type": "clip_vision_model", "hidden_size": 64}, "qformer_config": QFORMER},
        downsample_rate="1/2", deepstack_layer_map=[[0, 0]]),
    "granite_docling": whole("granite_docling", {"pad_token_id": 0}, TOWER | {"out_hidden_size": 64, "scale_factor": 2,
        "deepstack_visual_indexes": [0]}),
    "kimi_k25": whole("kimi_k25", LATENT | {"model_type": "deepseek_v3"},
        {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
            "pos_emb_height": 4, "pos_emb_width": 4}, projection_hidden_size=32),
    "hyperclovax": whole("hyperclovax_vision_v2", {"model_type": "hyperclovax", "attention_multiplier": 0.2},
        EYES | {"model_type": "qwen2_5_vl_vision"}),
    "hunyuan_vl": whole("hunyuan_vl", {
        "head_dim": 16, "pad_token_id": 0,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 9.0, "factor": 1.0,
            "mrope_section": [2, 2, 2, 2]}},
        TOWER | {"out_hidden_size": 64, "max_image_size": 64, "img_max_token_num": 4}),
    "deepseek_vl": whole("deepseek_vl", {"model_type": "llama"}, TOWER | {"model_type": "siglip_vision_model"}),
    "emu3": whole("emu3", {"pad_token_id": 0}, {"vq_config": CODES | {
        "codebook_size": 32, "temporal_downsample_factor": 1, "attn_resolutions": [1], "hidden_size": 32}},
        vocabulary_map={"<|visual token 000000|>": 3, "<image>": 4}),
    "video_llama_3": whole("video_llama_3", {"model_type": "qwen2"}, TOWER),
    "ovis2": whole("ovis2", {"model_type": "qwen2"}, TOWER | {"vocab_size": 32}, hidden_size=64, vocab_size=160),
    "lighton_ocr": whole("lighton_ocr", QWEN3, TOWER | {"model_type": "pixtral", "head_dim": 16}),
    "qwen2_audio": whole("qwen2_audio", {"model_type": "qwen2"}, {"audio_config": EARS}),
    "qwen3_asr": whole("qwen3_asr", QWEN3, {"audio_config": EARS | {"output_dim": 64, "downsample_hidden_size": 8}}),
    "glmasr": whole("glmasr", {"model_type": "llama"}, {"audio_config": HEARS | {"num_mel_bins": 16}}),
    "voxtral": whole("voxtral", {"model_type": "llama"}, {"audio_config": HEARS | {"num_mel_bins": 16,
        "max_source_positions": 8}}),
    "granite_speech": whole("granite_speech", {"model_type": "granite", "attention_multiplier": 0.2}, {
        "encoder_config": {"input_dim": 16, "num_layers": 1, "hidden_dim": 32, "num_heads": 2, "dim_head": 16,
            "output_dim": 8, "context_size": 8, "max_pos_emb": 8},
        "projector_config": QFORMER | {"model_type": "blip_2_qformer", "encoder_hidden_size": 32}},
        has_lora_adapter=False),
    "janus": whole("janus", {"model_type": "llama"}, {
        "vision_config": TOWER | {"projection_dim": 64, "depth": 2, "num_image_tokens": 4},
        "vq_config": CODES | {"num_embeddings": 32, "num_patches": 4, "projection_dim": 32,
            "image_token_embed_dim": 64}}),
    "ernie4_5_vl": whole("ernie4_5_vl_moe", {
        "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": [32, 16], "moe_num_shared_experts": 1,
        "head_dim": 16, "pad_token_id": 0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [3, 3, 2]}},
        EYES | {"spatial_merge_size": 2, "temporal_merge_size": 2}),
    "qianfan_ocr": whole("qianfan_ocr", QWEN3, TOWER | {"image_size": [28, 28], "patch_size": [14, 14]}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_text_of_a_folder_has_the_tokens_of_transformers(name: str, tmp_path: Path, backend: Backend) -> None:
    check_folder(CASES[name], tmp_path, backend)
    assert "ForConditionalGeneration" in str(sees_more_than_text(open_checkpoint(tmp_path)))


@dataclass(frozen=True)
class Published:
    """A folder as its makers publish it. `kind`, `changes`: the toy that its text is; `place`: where config.json has
    the text's figures, empty for the whole; `front`: of the names of tensors; `more`: what config.json says besides;
    `renamed`: parts of names that are other ones; `beside`: tensors that are none of the text.
    """

    kind: str
    changes: dict[str, Any]
    place: str
    front: str
    beside: tuple[str, ...]
    more: dict[str, Any] = field(default_factory=dict)
    renamed: tuple[tuple[str, str], ...] = ()


PHI = {"head_dim": 16, "pad_token_id": 0, "sliding_window": None}
THINKER = ("talker.model.x.weight", "thinker.visual.x.weight", "thinker.audio_tower.x.weight", "token2wav.x.weight")
PUBLISHED = {
    "Qwen2_5OmniModel": Published("qwen2", {"model_type": "qwen2_5_omni_text"}, "thinker_config.text_config",
        "thinker.", THINKER),
    "Qwen3OmniMoeForConditionalGeneration": Published("qwen3_moe",
        EXPERTS | {"head_dim": 16, "model_type": "qwen3_omni_moe_text"}, "thinker_config.text_config", "thinker.",
        THINKER),
    "InternVLChatModel": Published("qwen3", {"head_dim": 16}, "llm_config", "language_model.",
        ("vision_model.x.weight", "mlp1.0.weight")),
    "Ovis2_5": Published("qwen3", {"head_dim": 16}, "llm_config", "llm.", ("visual_tokenizer.x.weight", "vte.weight")),
    "DeepseekVLV2ForCausalLM": Published("deepseek_v2", LATENT | {"topk_method": "greedy"}, "language_config",
        "language.", ("vision.x.weight", "projector.x.weight", "image_newline")),
    "MultiModalityCausalLM": Published("llama", {}, "language_config", "language_model.",
        ("vision_model.x.weight", "aligner.x.weight", "gen_head.x.weight")),
    "LlavaForConditionalGeneration": Published("opt", {"ffn_dim": 96, "word_embed_proj_dim": 64}, "text_config",
        "language_model.", ("vision_tower.x.weight",)),
    "MiniCPMV": Published("qwen2", {"model_type": "minicpmv"}, "", "llm.",
        ("vpm.x.weight", "resampler.x.weight"), {"version": 2.6, "slice_config": {}, "vision_config": {}}),
    "MiniCPMO": Published("qwen3", {"head_dim": 16, "model_type": "minicpmo"}, "", "llm.",
        ("vpm.x.weight", "apm.x.weight", "tts.x.weight"), {"version": "4.5", "tts_config": {}}),
    "LlavaQwenForCausalLM": Published("qwen2", {"model_type": "llava_qwen"}, "", "",
        ("model.vision_tower.x.weight", "model.mm_projector.0.weight", "model.image_newline"),
        {"mm_hidden_size": 32, "use_mm_proj": True}),
    "DotsOCRForCausalLM": Published("qwen2", {"model_type": "dots_ocr"}, "", "", ("vision_tower.x.weight",)),
    "Phi3VForCausalLM": Published("phi3", PHI | {"model_type": "phi3_v"}, "", "",
        ("model.vision_embed_tokens.x.weight",), {"img_processor": {}, "embd_layer": {}}),
    "Phi4MMForCausalLM": Published("phi3", PHI | {"model_type": "phi4mm"}, "", "",
        ("model.embed_tokens_extend.x.weight", "model.layers.0.mlp.down_proj.lora_A.speech.weight"),
        {"speech_lora": {}, "vision_lora": {}}, (("proj.weight", "proj.base_layer.weight"),)),
    "YoutuVLForConditionalGeneration": Published("youtu", {
        key: value for key, value in LATENT.items() if key.endswith(("_rank", "head_dim", "heads"))},
        "", "", ("siglip2.x.weight", "merger.x.weight")),
}  # fmt: skip


def publish(whole_class: str, folder: Path) -> Any:
    """Write the folder; the model that its text is in transformers."""
    case = PUBLISHED[whole_class]
    changes = {key: value for key, value in case.changes.items() if key != "model_type"}
    theirs = make_model(case.kind, deepcopy(changes), folder)
    tensors = {name: np.zeros(4, np.float32) for name in case.beside}
    for name, values in load_file(folder / "model.safetensors").items():
        for part, other in case.renamed:
            name = name.replace(part, other)
        tensors[case.front + name] = values
    save_file(tensors, folder / "model.safetensors")
    text = json.loads((folder / "config.json").read_text()) | case.changes | case.more
    for table in reversed(case.place.split(".") if case.place else []):
        text = {table: text}
    (folder / "config.json").write_text(json.dumps({**text, "architectures": [whole_class]}))
    return theirs


@pytest.mark.parametrize("whole_class", PUBLISHED)
def test_the_text_of_a_published_folder_has_the_tokens_of_transformers(
    whole_class: str, tmp_path: Path, backend: Backend
) -> None:
    with quiet_and_on_one_thread():
        check_file(tmp_path, publish(whole_class, tmp_path), backend, BOUND)
    checkpoint = open_checkpoint(tmp_path)
    assert sees_more_than_text(checkpoint) == whole_class
    assert not unknown_names(checkpoint)


def test_figures_that_a_published_folder_leaves_out_are_those_of_the_class() -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    for kind, sizes in LEFT_OUT.items():
        theirs = CONFIG_MAPPING[kind]()
        assert {name: getattr(theirs, name) for name in sizes} == sizes, kind
        assert theirs.num_key_value_heads == sizes.get("num_key_value_heads", theirs.num_attention_heads), kind
