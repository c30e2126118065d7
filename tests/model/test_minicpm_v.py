"""MiniCPM-V 2.6 and later: what learned queries see of a slice is what torch's attention finds by the formula of the
model's card, and a picture is cut and written as its processor does.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from homenode.compute.ops import FloatArray
from homenode.compute.reference import ReferenceBackend
from homenode.errors import CheckpointError, UnsupportedError
from homenode.model.pictures.config_files import read_picture_config
from homenode.model.pictures.family import PictureConfig
from homenode.model.pictures.mmproj import folder_tensors, read_mmproj
from homenode.model.pictures.registry import family_named
from homenode.model.pictures.tower import Tower, TowerTensors
from tests.model.test_picture_towers import loaded, made, pictures

images = pytest.importorskip("PIL.Image")
NAME = "MiniCPMV"


def sines(down: int, across: int, width: int) -> FloatArray:
    """Of the place of each patch: half of them by its column, half by its row, sines before cosines."""
    found = np.zeros((down * across, width))
    for place in range(down * across):
        for axis, at in enumerate((place % across, place // across)):
            for step in range(width // 4):
                angle = at / 10000 ** (step / (width // 4))
                found[place, axis * width // 2 + step] = np.sin(angle)
                found[place, axis * width // 2 + width // 4 + step] = np.cos(angle)
    return found.astype(np.float32)


def test_queries_see_what_attention_of_torch_does() -> None:
    torch = pytest.importorskip("torch")
    family, tower = loaded(NAME, ReferenceBackend())
    tensors, width = tower.tensors, 128

    def array(name: str) -> Any:
        return torch.from_numpy(tensors.array(name))

    def norm(x: Any, name: str) -> Any:
        return torch.nn.functional.layer_norm(x, x.shape[-1:], array(f"{name}.weight"), array(f"{name}.bias"), 1e-6)

    attention = torch.nn.MultiheadAttention(width, 1)
    for name, value in attention.named_parameters():
        value.data = array(f"resampler.attn.{name}")
    picture = family.prepare(next(pictures()), True)
    tiles = [family.normalisation.of(tile) for tile in picture.tiles]
    x, lengths = family.tower.placed(tower, tiles, _buckets)
    x = family.tower.through(tower, family._last, x, lengths)
    wanted, at = [], 0
    for tile, length in zip(tiles, lengths, strict=True):
        rows = norm(torch.from_numpy(x[at : at + length].copy()), "vpm.post_layernorm")
        rows = norm(rows @ array("resampler.kv_proj.weight").T + array("resampler.kv_proj.bias"), "resampler.ln_kv")
        places = torch.from_numpy(sines(tile.shape[1] // 14, tile.shape[2] // 14, width))
        query = norm(array("resampler.query"), "resampler.ln_q")
        seen, _ = attention(query, rows + places, rows)
        wanted.append((norm(seen, "resampler.ln_post") @ array("resampler.proj")).detach().numpy())
        at += length
    found = family.encode(tower, picture).rows
    np.testing.assert_allclose(found, np.concatenate(wanted), atol=2e-4 * np.abs(found).max())


def test_rows_of_a_file_are_those_of_the_folder(tmp_path: Path) -> None:
    """As llama.cpp's converter for these models writes it: queries, keys and values apart, the last matrix turned."""
    family, tower = loaded(NAME, ReferenceBackend())
    names = family_named("minicpm_v").gguf.names(None)  # type: ignore[union-attr, arg-type]
    fronts = {own: front for front, own in sorted(names.items(), key=lambda pair: len(pair[1]))}
    writer = gguf.GGUFWriter(tmp_path / "mmproj-toy.gguf", "clip")
    writer.add_string("clip.projector_type", "resampler")
    writer.add_bool("clip.use_gelu", True)
    writer.add_int32("clip.minicpmv_version", 3)
    writer.add_uint32("clip.minicpmv_query_num", 4)
    figures = {"embedding_length": 32, "feed_forward_length": 48, "block_count": 2, "attention.head_count": 2}
    for key, value in (figures | {"patch_size": 14, "image_size": 56, "projection_dim": 0}).items():
        writer.add_uint32(f"clip.vision.{key}", value)
    for name in tower.tensors.shapes:  # type: ignore[attr-defined]
        values = tower.tensors.array(name)
        if name.startswith("resampler.attn.in_proj_"):
            end = name.removeprefix("resampler.attn.in_proj_")
            for key, part in zip("qkv", np.split(values, 3), strict=True):
                writer.add_tensor(f"resampler.attn.{key}.{end}", part)
        elif name == "resampler.proj":
            writer.add_tensor("resampler.proj.weight", np.ascontiguousarray(values.T))
        else:
            writer.add_tensor(_file_name(name.replace("vpm.", "vision_tower."), fronts), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    text = {"general.architecture": "qwen2", "qwen2.embedding_length": 128}
    text["tokenizer.ggml.tokens"] = [*"abcde", "<unk>"]  # type: ignore[assignment]
    header = read_mmproj(tmp_path / "mmproj-toy.gguf", text)
    form = family_named("minicpm_v").gguf
    assert form is not None
    config, processor, whole = form.config(header)
    seen = family_named("minicpm_v").make(
        PictureConfig(header.path, config, processor | {"max_slice_nums": 4, "scale_resolution": 56}, whole)
    )
    tensors = TowerTensors(ReferenceBackend(), folder_tensors(header, form), "a test", "F32")
    other = Tower(ReferenceBackend(), tensors, seen.form.heads, seen.form.head_dim)
    seen.load(other)
    picture = seen.prepare(next(pictures()), True)
    assert seen.placeholder == 5
    np.testing.assert_allclose(seen.encode(other, picture).rows, family.encode(tower, picture).rows, atol=1e-5)


def _file_name(own: str, fronts: dict[str, str]) -> str:
    """The name of a folder's tensor in a file, `fronts` being the beginnings of names."""
    numbered = re.sub(r"layers\.\d+\.", "layers.{n}.", own)
    number = re.search(r"layers\.(\d+)\.", own)
    front = max((each for each in fronts if numbered.startswith(each)), key=len)
    return fronts[front].replace("{n}", number[1] if number else "") + numbered.removeprefix(front)


def _buckets(table: FloatArray, down: int, across: int) -> FloatArray:
    side = int(len(table) ** 0.5)
    places = [side * row // down * side + side * column // across for row in range(down) for column in range(across)]
    return table[places]


@pytest.mark.parametrize(
    ("size", "tiles", "slice_size"),
    [  # width and height of a picture; rows and columns of slices; their sizes, of 56 x 56 in the middle, blocks of 14
        ((50, 40), (0, 0), None),
        ((56, 56), (0, 0), None),
        ((100, 40), (1, 3), (56, 56)),
        ((40, 100), (3, 1), (56, 56)),
        ((120, 110), (2, 2), (56, 56)),
        ((300, 20), (1, 3), (28, 126)),
    ],
)
def test_a_picture_is_cut_by_its_ratio(size: tuple[int, int], tiles: Any, slice_size: Any) -> None:
    family = made(NAME)
    prepared = family.prepare(images.new("RGB", size), True)
    assert prepared.layout.tiles == tiles and len(prepared.tiles) == 1 + tiles[0] * tiles[1]
    text = family.written(prepared.layout, lambda token: f"<{token}>", 3)
    one = "<5>" * 4
    line = f"<slice>{one}</slice>" * tiles[1]
    assert text == f"<image_id>3</image_id><image>{one}</image>" + "\n".join([line] * tiles[0])
    if slice_size:
        assert {tile.shape[:2] for tile in prepared.tiles[1:]} == {slice_size}


def test_other_versions_are_refused_by_name() -> None:
    config = PictureConfig(Path("config.json"), {"architectures": [NAME], "version": 2.0, "hidden_size": 128})
    with pytest.raises(UnsupportedError, match=r"MiniCPM-V 2\.0 are not supported; homenode runs those of 2\.6"):
        family_named("minicpm_v").make(config)


def test_the_token_of_images_is_that_of_the_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [NAME], "version": 2.6, "hidden_size": 128}))
    with pytest.raises(CheckpointError, match="no id of the token '<unk>'"):
        read_picture_config(tmp_path)
    added = {"7": {"content": "<image>"}, "9": {"content": "<unk>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    assert family_named("minicpm_v").make(read_picture_config(tmp_path)).placeholder == 9
