"""LightOnOCR: the pictures and the tower of Mistral 3 before a text of Qwen 3; rows of patches have no mark at their
ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from homenode.model.pictures.families.mistral3 import GGUF_NAMES, PERMUTED, Mistral3
from homenode.model.pictures.family import FamilyFormat, Names, PictureConfig, PictureLayout, PreparedPicture
from homenode.model.pictures.mmproj import GgufTower, Mmproj
from homenode.model.spec import PictureSpec

if TYPE_CHECKING:
    from PIL.Image import Image

_PLACEHOLDER = 151655


class LightOnOcr(Mistral3):
    """See `PictureFamily`. Sides are multiples of what the image processor has for a patch."""

    def __init__(self, config: PictureConfig) -> None:
        super().__init__(config)
        self.placeholder = config.config.integer("image_token_id", _PLACEHOLDER, minimum=0)
        size = config.processor.get("patch_size")
        found = size.get("height") if isinstance(size, dict) else size
        self.block = int(found or self.patch)

    def prepare(self, picture: Image, alone: bool) -> PreparedPicture:
        """See `PictureFamily`."""
        found, least = super().prepare(picture, alone), self.patch * self.merge
        if min(found.layout.size) < least:
            raise ValueError(f"it is less than {least} pixels high or wide, which make one row")
        return found

    def written(self, layout: PictureLayout, names: Names, number: int) -> str:
        """See `PictureFamily`."""
        rows, columns = (side // (self.patch * self.merge) for side in layout.size)
        return names(self.placeholder) * (rows * columns)


def _spec(_config: PictureConfig) -> PictureSpec:
    return PictureSpec("lighton_ocr")


def _gguf_config(file: Mmproj) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    merge, vision = file.vision.integer("spatial_merge_size", 2), file.vision
    config = {
        "architectures": ["LightOnOCRForConditionalGeneration"],
        "vision_config": file.tower() | {"model_type": "pixtral"},
        "image_token_id": file.token("<|image_pad|>"),
        "spatial_merge_size": merge,
    }
    size = {"longest_edge": vision.integer("image_size")}
    return config, file.processor(size=size, patch_size=vision.integer("patch_size") * merge), {}


FAMILY = FamilyFormat(_spec, LightOnOcr, GgufTower(_gguf_config, lambda _: GGUF_NAMES, permuted=PERMUTED))
