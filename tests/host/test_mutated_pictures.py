"""Mutated pictures of all formats through the process that decodes them: each is pixels or a named refusal, whatever
ends the process is one too, and it does not grow. HOMENODE_FUZZ_EXAMPLES=10000 tries as many.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homenode.model.media.decoder import FileDecoder
from homenode.model.pictures.family import PictureConfig, PictureLayout
from homenode.model.pictures.reader import family_words
from homenode.model.sandbox.frames import RefusedFileError

images = pytest.importorskip("PIL.Image")
EXAMPLES = int(os.environ.get("HOMENODE_FUZZ_EXAMPLES", "40"))
SIDE = 28
TILES = [["|u1", SIDE, SIDE, 3]]
MOST_GROWTH = 48 << 20  # bytes, once each format has been read


def files() -> list[bytes]:
    """One picture of each kind that decoders treat differently."""
    rng = np.random.default_rng(5)
    whole = images.fromarray(rng.integers(0, 256, (21, 34, 3)).astype(np.uint8))
    seen = whole.copy()
    seen.putalpha(90)
    made = [(whole, "PNG", {}), (seen, "PNG", {}), (whole.quantize(9), "PNG", {"transparency": 2}), (whole, "BMP", {})]
    made += [(whole, "JPEG", {}), (whole, "JPEG", {"progressive": True}), (whole.convert("CMYK"), "JPEG", {})]
    made += [(whole, "WEBP", {}), (seen, "WEBP", {"lossless": True}), (whole.convert("1"), "PNG", {})]
    made += [(whole.quantize(16), "GIF", {"save_all": True, "append_images": [whole.quantize(4)]})]
    found = []
    for image, kind, how in made:
        out = io.BytesIO()
        image.save(out, kind, **how)
        found.append(out.getvalue())
    return found


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """The file with a few bytes changed, cut, doubled or exchanged with those of another place."""
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 6))):
        if not out:
            break  # all of it was cut away
        at, count = int(rng.integers(0, len(out))), int(rng.integers(1, 9))
        kind = int(rng.integers(0, 6))
        if kind == 0:
            out[at] ^= 1 << int(rng.integers(0, 8))
        elif kind == 1:
            out[at : at + count] = bytes(rng.integers(0, 256, count, dtype=np.uint8))
        elif kind == 2:
            del out[at : at + count]
        elif kind == 3:
            out[at:at] = out[at : at + count] * int(rng.integers(1, 9))
        elif kind == 4:
            out[at : at + 4] = int(rng.choice([0, 1, 2**31 - 1, 2**32 - 1, 65535])).to_bytes(4, "big")
        else:
            out = out[: max(at, 1)]
    return bytes(out)


@pytest.fixture
def decoder() -> Iterator[FileDecoder]:
    vision = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1, "image_size": SIDE, "patch_size": 14}
    raw: dict[str, Any] = {"architectures": ["Gemma3ForConditionalGeneration"], "vision_config": vision}
    size = {"size": {"height": SIDE, "width": SIDE}}
    words = family_words("gemma3", PictureConfig(Path("config.json"), raw, size))
    found = FileDecoder("image", words, PictureLayout.of)
    yield found
    found.close()


def resident(decoder: FileDecoder) -> dict[int, int]:
    """Bytes in memory of the processes that do nothing, by their numbers."""
    found = {}
    for process in decoder._idle:
        found[process.pid] = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return found


def test_mutated_pictures_are_read_or_refused(decoder: FileDecoder) -> None:
    kinds = files()
    for data in kinds:
        assert decoder.decode(data, alone=True).arrays == TILES
    before, rng = resident(decoder), np.random.default_rng(11)
    read = refused = 0
    for number in range(EXAMPLES):
        try:
            assert decoder.decode(mutated(kinds[number % len(kinds)], rng), alone=True).arrays == TILES
            read += 1
        except RefusedFileError as error:
            assert str(error)
            refused += 1
    assert read and refused
    for data in kinds:
        assert decoder.decode(data, alone=True).arrays == TILES
    for pid, size in resident(decoder).items():
        assert size - before.get(pid, size) < MOST_GROWTH
