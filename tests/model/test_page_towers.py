"""Towers of models that read pages beside transformers, which has that of the first DeepSeek-OCR as Unlimited-OCR's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from homenode.compute.reference import ReferenceBackend
from homenode.model.checkpoint.folder import read_whole_tensors
from homenode.model.pictures.family import PictureConfig
from homenode.model.pictures.registry import family_of_class
from homenode.model.pictures.tower import Tower, TowerTensors
from tests.model.transformers_models import quiet_and_on_one_thread

pytestmark = pytest.mark.torch
torch, images = pytest.importorskip("torch"), pytest.importorskip("PIL.Image")

SIDE, TILE, MOST = 256, 160, 4
TEXT = {
    "hidden_size": 48, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 32,
    "num_key_value_heads": 2, "moe_intermediate_size": 16, "n_routed_experts": 2, "num_experts_per_tok": 1,
    "mlp_layer_types": ["dense"], "pad_token_id": 0,
}  # fmt: skip
SAM = {
    "hidden_size": 32, "output_channels": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_dim": 48,
    "global_attn_indexes": [1], "image_size": SIDE, "window_size": 7, "downsample_channels": [20, 28],
}  # fmt: skip
CLIP = {"hidden_size": 28, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 56}
QWEN = {
    "hidden_size": 28, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}  # fmt: skip
# By class here: the class of transformers, and the figures behind SAM.
MODELS = {
    "DeepseekOCRForCausalLM": ("UnlimitedOcr", CLIP),
    "DeepseekOCR2ForCausalLM": ("DeepseekOcr2", QWEN),
}


def make(stem: str, vision: dict[str, Any], folder: Path, text: dict[str, Any] = TEXT) -> Any:
    """A model whose tensors are all random, also those that begin as zeros, saved."""
    import transformers

    config = getattr(transformers, f"{stem}Config")(text_config=dict(text), vision_config=vision, image_token_id=5)
    model = getattr(transformers, f"{stem}ForConditionalGeneration")._from_config(config, attn_implementation="eager")
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, values in model.named_parameters():
            table = any(word in name for word in ("pos_embed", "rel_pos", "query_", "position_embedding", "cls_"))
            scale = 0.3 if values.dim() < 2 or table else values[0].numel() ** -0.5
            values.copy_(torch.randn(values.shape, generator=draw) * scale + ("norm" in name and values.dim() == 1))
    model.save_pretrained(folder)
    return model.eval()


def loaded(name: str, folder: Path, processor: dict[str, Any], **config: Any) -> tuple[Any, Tower]:
    """The family of a folder that transformers has saved, as one of the class `name`, and its tower."""
    format = family_of_class(name)
    assert format is not None
    raw = json.loads((folder / "config.json").read_text()) | {"architectures": [name]} | config
    tokens = {"tokens": {"<IMG_CONTEXT>": 5}}
    family: Any = format.make(PictureConfig(folder / "config.json", raw, processor, tokens))
    backend = ReferenceBackend()
    tensors = TowerTensors(backend, read_whole_tensors(folder), "a test", "F32")
    tower = Tower(backend, tensors, family.form.heads, family.form.head_dim)
    family.load(tower)
    return family, tower


@pytest.mark.parametrize("name", MODELS)
def test_pixels_and_rows_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    from transformers.models.deepseek_ocr2.image_processing_pil_deepseek_ocr2 import DeepseekOcr2ImageProcessorPil

    stem, encoder = MODELS[name]
    with quiet_and_on_one_thread():
        theirs = make(stem, {"sam_config": SAM, "encoder_config": encoder}, tmp_path)
    sizes = {"size": {"height": SIDE, "width": SIDE}, "tile_size": TILE, "max_patches": MOST}
    family, tower = loaded(name, tmp_path, sizes)
    draw = np.random.default_rng(3)
    for shape in ((90, 150), (170, 301)):  # as a whole, and in two tiles
        picture = images.fromarray(draw.integers(0, 256, (*shape, 3)).astype(np.uint8))
        given = DeepseekOcr2ImageProcessorPil(**sizes)(images=picture, return_tensors="pt")
        prepared = family.prepare(picture, True)
        pixels = [*given["pixel_values"], *given.get("pixel_values_local", ())]
        assert len(prepared.tiles) == len(pixels)
        for own, wanted in zip(prepared.tiles, pixels, strict=True):
            np.testing.assert_allclose(family.normalisation.of(own), wanted.numpy(), atol=1e-6)
        down, across = prepared.layout.tiles
        told: dict[str, Any] = {"num_local_patches": [down * across]}
        if down:
            told["pixel_values_local"] = given["pixel_values_local"]
        if name == "DeepseekOCRForCausalLM":
            told["patches_grid"] = [[max(across, 1), max(down, 1)]]
        with torch.no_grad():
            made = theirs.model.get_image_features(given["pixel_values"], return_dict=True, **told).pooler_output
        wanted = np.concatenate([rows.numpy() for rows in made])
        found = family.encode(tower, prepared).rows
        np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())
        if name == "DeepseekOCRForCausalLM":  # the other has as many queries as pictures of its own sizes have rows
            assert family.written(prepared.layout, lambda _: "x", 0) == "x" * len(found)


VIT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
QWEN3 = {
    "model_type": "qwen3", "hidden_size": 48, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 8,
    "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 32,
}  # fmt: skip
QIANFAN = VIT | {"image_size": [56, 56], "patch_size": [14, 14], "attention_bias": True}
TILES = {"crop_to_patches": True, "max_patches": 4, "size": {"height": 56, "width": 56}}
PUBLISHED = {
    "vision_config": VIT | {"image_size": 56, "patch_size": 14},
    "force_image_size": 56, "max_dynamic_patch": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "processor", "config"),
    [("QianfanOCRForConditionalGeneration", TILES, {}), ("InternVLChatModel", {}, PUBLISHED)],
)
def test_internvl_as_its_makers_publish_it(
    name: str, processor: dict[str, Any], config: dict[str, Any], tmp_path: Path
) -> None:
    """Qianfan-OCR is saved under the names that both have."""
    with quiet_and_on_one_thread():
        theirs = make("QianfanOCR", QIANFAN, tmp_path, QWEN3)
    family, tower = loaded(name, tmp_path, processor, image_seq_length=4, **config)
    draw = np.random.default_rng(3)
    for shape in ((40, 90), (70, 60)):
        prepared = family.prepare(images.fromarray(draw.integers(0, 256, (*shape, 3)).astype(np.uint8)), True)
        pixels = torch.tensor(np.stack([family.normalisation.of(tile) for tile in prepared.tiles]))
        with torch.no_grad():
            made = theirs.model.get_image_features(pixels, return_dict=True).pooler_output
        wanted = np.concatenate([rows.numpy() for rows in made])
        found = family.encode(tower, prepared).rows
        np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())
        assert family.written(prepared.layout, lambda _: "x", 0) == f"<img>{'x' * len(found)}</img>"
        assert family.placeholder == 5


def test_lighton_ocr_has_no_marks_of_lines(tmp_path: Path) -> None:
    with quiet_and_on_one_thread():
        theirs = make("LightOnOcr", VIT | {"model_type": "pixtral", "head_dim": 16, "patch_size": 14}, tmp_path, QWEN3)
    processor = {"size": {"longest_edge": 112}, "patch_size": 14}
    family, tower = loaded("LightOnOcrForConditionalGeneration", tmp_path, processor)
    with pytest.raises(ValueError, match="less than 28 pixels"):
        family.prepare(images.new("RGB", (90, 13)), True)
    draw = np.random.default_rng(3)
    for shape in ((40, 90), (70, 60), (200, 30)):
        prepared = family.prepare(images.fromarray(draw.integers(0, 256, (*shape, 3)).astype(np.uint8)), True)
        pixels = torch.tensor(family.normalisation.of(prepared.tiles[0]))[None]
        with torch.no_grad():
            made = theirs.model.get_image_features(pixels, torch.tensor([prepared.layout.size]), return_dict=True)
        wanted = np.concatenate([rows.numpy() for rows in made.pooler_output])
        found = family.encode(tower, prepared).rows
        np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())
        assert family.written(prepared.layout, lambda _: "x", 0) == "x" * len(found)


def test_published_folders_have_words_of_their_own() -> None:
    """What the makers of DeepSeek-OCR write in config.json, and what they leave out."""
    sam = {"downsample_channels": [512, 1024], "global_attn_indexes": [1], "heads": 2, "layers": 3, "width": 32}
    clip = {"heads": 4, "image_size": 224, "layers": 5, "patch_size": 14, "width": 64}
    towers = {"DeepseekOCRForCausalLM": {"clip-l-14-224": clip}, "DeepseekOCR2ForCausalLM": {"qwen2-0-5b": {"dim": 56}}}
    for name, behind in towers.items():
        raw = {"architectures": [name], "vision_config": {"width": {"sam_vit_b": sam, **behind}, "image_size": 1024}}
        format = family_of_class(name)
        assert format is not None
        family: Any = format.make(PictureConfig(Path("config.json"), raw))
        assert (family.sam.width, family.sam.layers, family.sam.form.heads, family.sam.sees_all) == (32, 3, 2, {1})
        wanted = (64, 4, 5, 0) if name == "DeepseekOCRForCausalLM" else (56, 14, 24, 2)
        assert (family.width, family.form.heads, family.layers, family.form.kv_heads) == wanted
        assert (family.views.side, family.placeholder) == (1024, 128815)
        assert family.views.tile == (640 if name == "DeepseekOCRForCausalLM" else 768)
