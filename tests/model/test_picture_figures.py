"""Figures of a folder that say how pictures are cut: what no model has is refused by name when the family is made,
before anything is allocated for it.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from homenode.errors import HomenodeError
from homenode.model.pictures.family import PictureConfig
from homenode.model.pictures.registry import family_of_class
from homenode.server.models.picture_setup import picture_work

images = pytest.importorskip("PIL.Image")
VIT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
INTERN = {"vision_config": VIT | {"image_size": [56, 56], "patch_size": [14, 14]}}
TILES = {"size": {"height": 56, "width": 56}, "crop_to_patches": True}
SAM: dict[str, Any] = {"vision_config": {"sam_config": {"hidden_size": 32, "num_attention_heads": 2}}}
OCR, OCR2, INTERN_VL = (
    "DeepseekOCRForCausalLM",
    "DeepseekOcr2ForConditionalGeneration",
    "InternVLForConditionalGeneration",
)


def make(name: str, config: dict[str, Any], processor: dict[str, Any]) -> Any:
    format = family_of_class(name)
    assert format is not None
    raw = {"architectures": [name], **config}
    return format.make(PictureConfig(Path("config.json"), raw, processor, {"tokens": {"<IMG_CONTEXT>": 5}}))


def sam(**figures: Any) -> dict[str, Any]:
    return {"vision_config": {"sam_config": SAM["vision_config"]["sam_config"] | figures}}


def intern(**figures: Any) -> dict[str, Any]:
    return {"vision_config": INTERN["vision_config"] | figures}


def test_usual_figures_are_taken() -> None:
    for name in (OCR, OCR2):
        make(name, SAM, {})
    family = make(INTERN_VL, INTERN | {"image_seq_length": 1_000_000_000}, TILES)
    layout = family.prepare(images.new("RGB", (56, 56)), True).layout
    assert family.written(layout, lambda _: "x", 0) == "<img>xxxx</img>"  # as many as the tower makes, whatever is said


@pytest.mark.parametrize(
    ("name", "config", "processor", "said"),
    [
        (OCR, SAM, {"max_patches": 100_000}, "up to 100000 tiles"),
        (OCR2, SAM, {"max_patches": 257}, "up to 257 tiles"),
        (OCR, SAM, {"size": {"height": 6000, "width": 6000}}, "6000 pixels a side in patches of 16"),
        (OCR2, SAM, {"tile_size": 8}, "8 pixels a side in patches of 16"),
        (OCR, sam(patch_size=1), {}, "in patches of 1"),
        (INTERN_VL, INTERN, TILES | {"max_patches": 1 << 20}, "up to 1048576 tiles"),
        (INTERN_VL, INTERN, {"size": {"height": 112, "width": 112}}, "112 x 112 pixels before a tower of 56"),
        (INTERN_VL, intern(patch_size=[0, 0]), TILES, "patch_size"),
        (INTERN_VL, INTERN | {"downsample_ratio": 0.3}, TILES, "downsample_ratio"),
        (INTERN_VL, INTERN | {"downsample_ratio": 0.0}, TILES, "downsample_ratio"),
    ],
)
def test_figures_that_no_model_has_are_refused(
    name: str, config: dict[str, Any], processor: dict[str, Any], said: str
) -> None:
    with pytest.raises(HomenodeError, match=said):
        make(name, config, processor)


def test_a_text_model_is_served_whatever_its_files_say_of_images(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A figure of a type that nobody expects refuses images, and not the start."""
    config = {"architectures": [OCR], **SAM}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ready = SimpleNamespace(details={}, row_columns=40)
    for number, processor in enumerate(({"background_color": [127]}, {"tile_size": "x"}, {"resample": None})):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
        assert picture_work(tmp_path, ready, SimpleNamespace(encoder_cpus=())) is None  # type: ignore[arg-type]
        assert [record.message.startswith("this model sees, but images are refused: what its files say") for record in
                caplog.records] == [True] * (number + 1)  # fmt: skip
