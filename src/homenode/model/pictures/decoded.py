"""A picture's bytes turned into an RGB picture, as the processors of transformers are given one: turned as its EXIF
says, laid on white where it is transparent, and the first frame alone of those that move.

Only PNG, JPEG, WebP, GIF and BMP are looked at; the size is judged before anything of the pixels is decoded. This runs
in a process of its own (`model.media.decoder_process`).
"""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING

from homenode.model.sandbox.frames import RefusedFileError

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_PIXELS = 50_000_000
MOST_SIDE = 65_500
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
_WHITE = (255, 255, 255, 255)


class PictureError(RefusedFileError):
    """A picture that cannot be read, or is too large. The text says why."""


def read_picture(data: bytes) -> Image:
    """The RGB picture of a file. PictureError for anything but a whole file of a known format with few enough
    pixels.
    """
    from PIL import BmpImagePlugin, GifImagePlugin, Image, ImageOps, JpegImagePlugin, PngImagePlugin, WebPImagePlugin
    from PIL import UnidentifiedImageError as UnidentifiedImageError

    assert BmpImagePlugin and GifImagePlugin and JpegImagePlugin and PngImagePlugin and WebPImagePlugin
    Image.MAX_IMAGE_PIXELS = MOST_PIXELS
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as whole:
            _check_size(*whole.size)
            if whole.format == "PNG":
                whole.verify()  # the checksums of its chunks, which decoding passes over
        image = Image.open(io.BytesIO(data), formats=_FORMATS)
        image.load()
        return _on_white(ImageOps.exif_transpose(image))
    except PictureError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise PictureError(f"it has more than {MOST_PIXELS} pixels, the most that are taken") from None
    except UnidentifiedImageError:
        raise PictureError(f"it is none of {', '.join(_FORMATS)}") from None
    except MemoryError:
        raise PictureError("decoding it takes too much memory") from None
    except Exception as error:  # a damaged file fails in any way that a decoder has
        raise PictureError(f"it is damaged: {error}") from None


def _check_size(width: int, height: int) -> None:
    if width < 1 or height < 1:
        raise PictureError(f"it has {width} x {height} pixels")
    if width * height > MOST_PIXELS or max(width, height) > MOST_SIDE:
        raise PictureError(
            f"it has {width} x {height} pixels; at most {MOST_PIXELS} are taken, and {MOST_SIDE} on a side"
        )


def _on_white(image: Image) -> Image:
    from PIL import Image as images

    if "A" in image.getbands() or "transparency" in image.info:
        over = image.convert("RGBA")
        image = images.alpha_composite(images.new("RGBA", over.size, _WHITE), over)
    return image.convert("RGB")
