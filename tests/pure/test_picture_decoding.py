"""Pictures out of files: what is made of each kind, and what is refused before it is decoded."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest

from homenode.model.pictures import pixels
from homenode.model.pictures.decoded import MOST_PIXELS, PictureError, read_picture

Image = pytest.importorskip("PIL.Image")


def file_of(image: Any, kind: str = "PNG", **how: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **how)
    return out.getvalue()


def sample(width: int = 9, height: int = 5) -> Any:
    rng = np.random.default_rng(7)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3)).astype(np.uint8))


def seen(data: bytes) -> np.ndarray:
    return np.asarray(read_picture(data))


@pytest.mark.parametrize("kind", ["PNG", "BMP", "WEBP"])
def test_pixels_are_those_of_the_file(kind: str) -> None:
    how = {"lossless": True} if kind == "WEBP" else {}
    assert np.array_equal(seen(file_of(sample(), kind, **how)), np.asarray(sample()))


def test_transparency_is_laid_on_white() -> None:
    image = Image.new("RGBA", (2, 1), (10, 20, 30, 0))
    image.putpixel((1, 0), (10, 20, 30, 255))
    assert seen(file_of(image)).tolist() == [[[255, 255, 255], [10, 20, 30]]]


def test_palettes_grey_and_cmyk_become_rgb() -> None:
    assert seen(file_of(Image.new("L", (1, 1), 77))).tolist() == [[[77] * 3]]
    palette = Image.new("P", (1, 1))
    palette.putpalette([1, 2, 3])
    assert seen(file_of(palette, transparency=0)).tolist() == [[[255] * 3]]
    assert seen(file_of(Image.new("CMYK", (8, 8), (255, 0, 0, 0)), "JPEG"))[0, 0, 0] < 30


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_turned_as_its_exif_says(orientation: int) -> None:
    from PIL import ImageOps

    exif = Image.Exif()
    exif[0x0112] = orientation
    data = file_of(sample(), exif=exif)
    assert np.array_equal(seen(data), np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data)))))


def test_of_what_moves_the_first_frame_is_seen() -> None:
    frames = [Image.new("RGB", (4, 4), color) for color in ((255, 0, 0), (0, 255, 0))]
    assert seen(file_of(frames[0], "GIF", save_all=True, append_images=frames[1:]))[0, 0].tolist() == [255, 0, 0]


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int, data: bytes = b"") -> bytes:
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


GOOD = file_of(sample(40, 40))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "none of"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "none of"),
        (file_of(sample(), "TIFF"), "none of"),
        (GOOD[: len(GOOD) // 2], "damaged"),
        (GOOD[:200] + bytes([GOOD[200] ^ 255]) + GOOD[201:], "damaged"),
        (png(99, 99), "damaged"),
        (png(30_000, 30_000), str(MOST_PIXELS)),
        (png(2**31 - 1, 2**31 - 1), str(MOST_PIXELS)),
    ],
)
def test_what_is_no_picture_or_too_large_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(PictureError, match=why):
        read_picture(data)


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        ((112, 112), (128, 128)),
        ((1, 1), (64, 64)),
        ((301, 7), (192, 32)),
        ((640, 427), (256, 160)),
        ((48, 80), (64, 64)),
    ],
)
def test_sizes_keep_to_their_area(size: tuple[int, int], wanted: tuple[int, int]) -> None:
    found = pixels.area_size(*size, 32, 32 * 32 * 4, 32 * 32 * 48)
    assert not any(side % 32 for side in found) and 4 <= found[0] * found[1] // 1024 <= 48
    if size != (301, 7):
        assert found == wanted


def test_too_long_a_picture_is_refused() -> None:
    with pytest.raises(ValueError, match="200 times"):
        pixels.area_size(1, 201, 32, 1024, 4096)


def test_patches_and_blocks_are_in_order() -> None:
    picture = np.arange(3 * 8 * 12, dtype=np.float32).reshape(3, 8, 12)
    patches = pixels.block_patches(picture, 2, 2)
    places = pixels.block_places(4, 6, 2)
    for patch, (row, column) in zip(patches, places.astype(int).tolist(), strict=True):
        assert patch.tolist() == picture[:, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2].reshape(-1).tolist()
    assert places[:4].tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    rows = pixels.merged_blocks(np.arange(24, dtype=np.float32)[:, None], 4, 6, 2)
    assert rows[0].tolist() == [0, 1, 6, 7] and rows[-1].tolist() == [16, 17, 22, 23]
