"""Qianfan-OCR: InternVL, whose chat template writes another word in the place of an image."""

from __future__ import annotations

from homenode.model.pictures.families.internvl import InternVl
from homenode.model.pictures.family import FamilyFormat, PictureConfig
from homenode.model.spec import PictureSpec


class QianfanOcr(InternVl):
    """See `PictureFamily`."""

    def __init__(self, config: PictureConfig) -> None:
        super().__init__(config)
        self.marker_token = str(config.whole.get("image_placeholder_token") or "<image>")


def _spec(_config: PictureConfig) -> PictureSpec:
    return PictureSpec("qianfan_ocr")


FAMILY = FamilyFormat(_spec, QianfanOcr)
