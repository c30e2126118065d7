"""InternVL as its makers publish it, and its GGUF files: that of transformers, with other names in its folder, and with
chat templates that know texts alone.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.errors import UnsupportedError
from homenode.model.pictures import pixels
from homenode.model.pictures.families.internvl import GGUF, InternVl
from homenode.model.pictures.family import FamilyFormat, PictureConfig
from homenode.model.pictures.siglip import side_of
from homenode.model.pictures.vision_config import vision_of
from homenode.model.spec import PictureSpec

CONTEXT = "<IMG_CONTEXT>"  # the token that stands for a row, which config.json does not name


class InternVlChat(InternVl):
    """See `PictureFamily`."""

    marker_token: int | str | None = ""

    def __init__(self, config: PictureConfig) -> None:
        named = str(config.config.value("architectures"))
        super().__init__(_as_in_transformers(config) if "InternVLChatModel" in named else config)


def _as_in_transformers(config: PictureConfig) -> PictureConfig:
    """What a folder says, in the words of transformers. UnsupportedError for rows that are made otherwise."""
    fields, vision, raw = config.config, vision_of(config), dict(config.raw)
    if fields.value("select_layer") not in (None, -1) or fields.text("ps_version", "v2") != "v2":
        raise UnsupportedError("images of InternVL but for select_layer -1 and ps_version v2 are not supported")
    if fields.boolean("dynamic_image_size", True) and not fields.boolean("use_thumbnail", True):
        raise UnsupportedError("images of InternVL in tiles without the whole (use_thumbnail) are not supported")
    side = fields.integer("force_image_size", side_of(vision, "image_size", 448))
    tower = dict(raw.get("vision_config") or {})
    tower["use_qk_norm"] = vision.boolean("qk_normalization", False)
    tokens = config.whole.get("tokens")
    raw |= {
        "vision_config": tower,
        "image_token_id": tokens.get(CONTEXT, 0) if isinstance(tokens, dict) else 0,
    }
    means = dict(zip(("image_mean", "image_std"), pixels.IMAGENET, strict=True))
    processor = {
        **means,
        **config.processor,
        "size": {"height": side, "width": side},
        "crop_to_patches": fields.boolean("dynamic_image_size", True),
        "min_patches": fields.integer("min_dynamic_patch", 1, maximum=64),
        "max_patches": fields.integer("max_dynamic_patch", 12, maximum=64),
        "resample": pixels.BICUBIC,
    }
    return replace(config, raw=raw, processor=processor)


def _spec(_config: PictureConfig) -> PictureSpec:
    return PictureSpec("internvl_chat")


FAMILY = FamilyFormat(_spec, InternVlChat, GGUF)
