"""Towers in GGUF files, written as llama.cpp's converters write them: they make the rows that those of folders do."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from homenode.compute.ops import FloatArray
from homenode.compute.reference import ReferenceBackend
from homenode.engine.encoder.client import row_digests
from homenode.engine.encoder.picture_tower import tower_digest, tower_tensors
from homenode.errors import CheckpointError, HomenodeError, UnsupportedError, UserError
from homenode.model.formats.gguf import read_gguf
from homenode.model.formats.gguf_set import find_gguf, find_mmproj
from homenode.model.formats.mmproj_names import MMPROJ_PATTERN, is_mmproj
from homenode.model.hub.gguf_names import gguf_models
from homenode.model.pictures.classes import PROJECTORS
from homenode.model.pictures.gguf_files import gguf_picture_spec, read_gguf_pictures
from homenode.model.pictures.reader import family_words
from homenode.model.pictures.registry import family_named, family_of_class
from homenode.model.pictures.tower import Tower
from tests.model.test_picture_towers import HEADS, INNER, SIDE, TEXT, TOWERS, WIDTH, RandomTensors, loaded, pictures

TOKENS = ["a", "b", "c", "d", "e"]  # before the placeholder, which is number 5
Changes = Mapping[str, Callable[[FloatArray], FloatArray]]


def interleaved(matrix: FloatArray) -> FloatArray:
    """Halves of each head in turns, as llama.cpp has them."""
    return matrix.reshape(HEADS, 2, -1, *matrix.shape[1:]).swapaxes(1, 2).reshape(matrix.shape)


def channels_first(side: int) -> Callable[[FloatArray], FloatArray]:
    return lambda matrix: matrix.reshape(len(matrix), side, side, 3).transpose(0, 3, 1, 2)


SAM_FIGURES = {"sam.embedding_length": WIDTH, "sam.block_count": 2, "sam.head_count": HEADS, "window_size": 3,
               "preproc_image_size": 128}  # fmt: skip
# By class: the projector, the placeholder, further tokens, figures of the tower, and what becomes of tensors.
FILES: dict[str, tuple[str, str, tuple[str, ...], dict[str, Any], Changes]] = {
    "Gemma3ForConditionalGeneration": (
        "gemma3", "<image_soft_token>", ("<start_of_image>", "<end_of_image>"), {"projector.scale_factor": 2},
        {"mm_soft_emb_norm.weight": lambda norm: norm + 1},
    ),
    "Gemma4ForConditionalGeneration": (
        "gemma4v", "<|image|>", ("<|image>", "<image|>"), {"patch_size": 4},
        {"input_proj.weight": channels_first(4)},
    ),
    "Mistral3ForConditionalGeneration": (
        "pixtral", "[IMG]", (), {"spatial_merge_size": 2, "image_size": 112},
        {"q_proj.weight": interleaved, "k_proj.weight": interleaved},
    ),
    "LightOnOcrForConditionalGeneration": (
        "lightonocr", "<|image_pad|>", (), {"spatial_merge_size": 2, "image_size": 112},
        {"q_proj.weight": interleaved, "k_proj.weight": interleaved},
    ),
    "SmolVLMForConditionalGeneration": (
        "idefics3", "<image>", (),
        {"patch_size": 16, "image_size": 64, "preproc_image_size": 128, "projector.scale_factor": 2}, {},
    ),
    "Qwen3VLForConditionalGeneration": (
        "qwen3vl_merger", "<|image_pad|>", (),
        {"patch_size": 16, "block_count": 3, "is_deepstack_layers": [True, False, True], "spatial_merge_size": 2,
         "image_min_pixels": 4096, "image_max_pixels": 32768}, {},
    ),
    "Glm4vForConditionalGeneration": ("glm4v", "<|image|>", (), {"block_count": 3}, {}),
    "Llama4ForConditionalGeneration": ("llama4", "<|patch|>", (), {"projector.scale_factor": 2}, {}),
    "DeepseekOCRForCausalLM": ("deepseekocr", "<image>", (), SAM_FIGURES, {}),
    "DeepseekOcr2ForConditionalGeneration": (
        "deepseekocr2", "<image>", (), SAM_FIGURES | {"attention.head_count_kv": 1}, {},
    ),
    "MiniCPMV4_6ForConditionalGeneration": (
        "minicpmv4_6", "<|image_pad|>", (), {"wa_layer_indexes": [0], "projector.scale_factor": 4}, {},
    ),
    "InternVLForConditionalGeneration": (
        "internvl", "<IMG_CONTEXT>", (), {"projector.scale_factor": 2, "preproc_max_tiles": 4}, {},
    ),
}  # fmt: skip


def text_of(name: str, **more: Any) -> dict[str, Any]:
    _, placeholder, others, _, _ = FILES[name]
    return {
        "general.architecture": "llama",
        "llama.embedding_length": TEXT,
        "llama.attention.layer_norm_rms_epsilon": 1e-6,
        "tokenizer.ggml.tokens": [*TOKENS, placeholder, *others],
        **more,
    }


def stored(name: str) -> dict[str, FloatArray]:
    """The tensors of a tower as a converter writes them."""
    projector, _, _, _, changes = FILES[name]
    form = family_named(PROJECTORS[projector]).gguf
    assert form is not None
    tensors = RandomTensors(ReferenceBackend(), TOWERS[name][3])
    marked = [number for number, there in enumerate(FILES[name][3].get("is_deepstack_layers", ())) if there]
    names = form.names(MARKS(marked))  # type: ignore[arg-type]
    found: dict[str, FloatArray] = {}
    for own in tensors.shapes:
        values = tensors.array(own)
        change = next((each for end, each in changes.items() if own.endswith(end)), None)
        values = values if change is None else change(values)
        gguf_name = _gguf_name(own, names)
        if values.ndim == 5:  # frames apart
            found |= {gguf_name: values[:, :, 0], f"{gguf_name}.1": values[:, :, 1]}
        else:
            found[gguf_name] = values.reshape(1) if values.ndim == 0 else values
    return found


class MARKS:
    """A file that only says after which layers rows are made."""

    def __init__(self, marked: list[int]) -> None:
        self.metadata = {"clip.vision.is_deepstack_layers": [n in marked for n in range(3)]}


def _gguf_name(own: str, names: Mapping[str, str]) -> str:
    if any(name.startswith("vision_tower.") for name in names.values()):
        own = re.sub(r"^(model\.)?(vision_tower\.)?vision_model\.", "vision_tower.", own)
        own = own.replace("model.vision_encoder.", "vision_tower.")
        own = own.replace("model.vision_projection.", "multi_modal_projector.")
    for gguf_name, folder_name in sorted(names.items(), key=lambda pair: -len(pair[1])):
        begin, _, end = folder_name.partition("{n}")
        at = own.find(begin)
        if at < 0:
            continue
        rest = own[at + len(begin) :]
        number = ""
        if "{n}" in folder_name:
            number, _, rest = rest.partition(".")
            rest = f".{rest}"
        if rest.startswith(end) and (rest == end or rest[len(end)] == "."):
            return gguf_name.replace("{n}", number) + rest[len(end) :]
    raise AssertionError(own)


def write(folder: Path, name: str, add: Callable[..., None] | None = None, **metadata: Any) -> Path:
    """An mmproj file of the tower that `TOWERS` has for a class. `add`: what writes a tensor, from the file's writer,
    its name and values; None: as float32.
    """
    projector, _, _, figures, _ = FILES[name]
    file = folder / "mmproj-toy.gguf"
    folder.mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(file, "clip")
    writer.add_type("mmproj")
    writer.add_string("clip.projector_type", projector)
    writer.add_bool("clip.use_silu" if projector in ("pixtral", "lightonocr", "glm4v") else "clip.use_gelu", True)
    usual = {"embedding_length": WIDTH, "feed_forward_length": INNER, "block_count": 2, "attention.head_count": HEADS}
    usual |= {"patch_size": 14, "image_size": SIDE, "projection_dim": TEXT}
    for key, value in (usual | figures | metadata).items():
        if isinstance(value, list):
            writer.add_array(f"clip.vision.{key}", value)
        else:
            writer.add_uint32(f"clip.vision.{key}", value)
    processor = TOWERS[name][2]
    for key, usual_value in (("image_mean", 0.5), ("image_std", 0.5)):
        writer.add_array(f"clip.vision.{key}", processor.get(key, [usual_value] * 3))
    for tensor, values in stored(name).items():
        (add or gguf.GGUFWriter.add_tensor)(writer, tensor, np.ascontiguousarray(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def text_file(folder: Path, name: str) -> Path:
    """A GGUF file with what is asked of a text model, and no tensor."""
    file = folder / "toy.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_uint32("llama.embedding_length", TEXT)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_array("tokenizer.ggml.tokens", text_of(name)["tokenizer.ggml.tokens"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.mark.parametrize("name", FILES)
def test_rows_are_those_of_the_folder(tmp_path: Path, name: str) -> None:
    backend = pytest.importorskip("homenode.compute.native").NativeBackend([-1])
    file, model = write(tmp_path, name), text_file(tmp_path, name)
    family, config = read_gguf_pictures(file, model)
    made = family_named(family).make(config)
    tower = Tower(backend, tower_tensors(backend, config, model, "F32"), made.form.heads, made.form.head_dim)
    made.load(tower)
    _, folder = loaded(name, backend)
    assert made.placeholder == 5
    for picture in list(pictures())[:1]:
        prepared = made.prepare(picture, True)
        found, wanted = made.encode(tower, prepared).rows, _folder_rows(name, folder, prepared)
        np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())


def test_a_picture_that_fits_is_left_as_it_is_where_a_file_says_no_budget(tmp_path: Path) -> None:
    """Folders of Gemma 4 say how many rows a picture is made to have; files do not, and blocks are 12 wide here."""
    name = "Gemma4ForConditionalGeneration"
    family, config = read_gguf_pictures(write(tmp_path, name), text_file(tmp_path, name))
    made, (picture, *_) = family_named(family).make(config), pictures()
    sizes = {size: made.prepare(picture.resize(size), True).layout.size for size in ((84, 120), (120, 84), (240, 168))}
    assert sizes == {size: size[::-1] for size in sizes}
    for size in ((84, 108), (84, 121), (252, 168)):  # too small, no whole blocks, too large
        high, wide = made.prepare(picture.resize(size), True).layout.size
        assert (high, wide) != size[::-1] and 250 <= high // 12 * (wide // 12) <= 280
    folder, _ = loaded(name, ReferenceBackend())
    assert folder.prepare(picture.resize((60, 60)), True).layout.size != (60, 60)


def _folder_rows(name: str, tower: Tower, prepared: Any) -> FloatArray:
    """Rows of the folder's tower for what the file has prepared, normalised as the file says."""
    from homenode.model.pictures.family import PictureConfig

    vision, fields, processor, _ = TOWERS[name]
    raw = {"architectures": [name], "vision_config": vision, "text_config": {"rms_norm_eps": 1e-6}, **fields}
    format = family_of_class(name)
    assert format is not None
    half = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    made = format.make(PictureConfig(Path("config.json"), raw, half | processor, {}))
    made.load(tower)
    rows: FloatArray = made.encode(tower, prepared).rows
    return rows


def test_a_file_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    name = "SmolVLMForConditionalGeneration"
    file = write(tmp_path, name)
    with pytest.raises(
        UserError, match=f"{file}: its projector makes rows of {TEXT} columns, and the text model has 7"
    ):
        gguf_picture_spec(file, text_of(name) | {"llama.embedding_length": 7}, asked=True)
    with pytest.raises(UnsupportedError, match="a token '<image>' for images"):
        gguf_picture_spec(file, text_of(name) | {"tokenizer.ggml.tokens": TOKENS}, asked=True)
    assert gguf_picture_spec(file, text_of(name) | {"llama.embedding_length": 7}, asked=False) is None
    with pytest.raises((UnsupportedError, CheckpointError)):
        gguf_picture_spec(text_file(tmp_path, name), text_of(name), asked=True)


def test_a_projector_that_is_not_known_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "SmolVLMForConditionalGeneration"
    monkeypatch.setitem(FILES, name, ("of_another_kind", *FILES[name][1:]))
    monkeypatch.setitem(PROJECTORS, "of_another_kind", "idefics3")  # type: ignore[arg-type]
    file = write(tmp_path, name)
    monkeypatch.undo()
    with pytest.raises(UnsupportedError, match="a projector of the type 'of_another_kind' is not supported"):
        gguf_picture_spec(file, text_of(name), asked=True)


def _rows_known_by(folder: Path, name: str, **metadata: Any) -> tuple[bytes, Path]:
    """The digests of a picture's rows with a tower that is written anew, and its file."""
    folder.mkdir()
    file, model = write(folder, name, **metadata), text_file(folder, name)
    return _digests(file, model), file


def _digests(file: Path, model: Path, storage: str | None = "F32") -> bytes:
    family, config = read_gguf_pictures(file, model)
    backend = ReferenceBackend()
    tensors, made = tower_tensors(backend, config, model, storage), family_named(family).make(config)
    made.load(Tower(backend, tensors, made.form.heads, made.form.head_dim))
    return row_digests(tower_digest(family_words(family, config), tensors, storage), b"p" * 32, 2)


def test_rows_of_another_tower_are_others(tmp_path: Path) -> None:
    name = "SmolVLMForConditionalGeneration"
    first, file = _rows_known_by(tmp_path / "a", name)
    again, _ = _rows_known_by(tmp_path / "b", name)
    assert first == again and len(first) == 64 and first[:32] != first[32:], "where the files lie does not count"
    other_figures, _ = _rows_known_by(tmp_path / "c", name, preproc_image_size=64)
    tensor = read_gguf(file).tensors["v.blk.0.ffn_up.weight"]
    with file.open("r+b") as opened:
        opened.seek(tensor.offset + tensor.nbytes - 4)
        opened.write(np.float32(0.123).tobytes())
    other_weight = _digests(file, file.with_name("toy.gguf"))
    assert len({first, other_figures, other_weight}) == 3


_KEYS = ("embedding_length", "feed_forward_length", "block_count", "attention.head_count", "patch_size", "image_size",
         "projection_dim", "projector.scale_factor", "spatial_merge_size", "preproc_image_size", "preproc_max_tiles",
         "image_min_pixels", "n_wa_pattern")  # fmt: skip


@pytest.mark.parametrize("projector", PROJECTORS)
def test_figures_that_cannot_be_never_end_the_start(
    tmp_path: Path, projector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each figure that a file may have left out, and as large as it can be: it is read, left alone or refused."""
    monkeypatch.setattr("tests.model.test_mmproj.stored", lambda name: {"v.x": np.zeros(4, np.float32)})
    name = next((each for each, parts in FILES.items() if parts[0] == projector), "Qwen3VLForConditionalGeneration")
    monkeypatch.setitem(FILES, name, (projector, *FILES[name][1:]))
    marks = ("<|image_pad|>", "<image>", "<|media_pad|>", "<|media_begin|>", "<|media_end|>", "<|image|>", "<|image>")
    text = text_of(name) | {"llama.rope.dimension_sections": [2, 1, 1, 0]}
    text["tokenizer.ggml.tokens"] = [*text["tokenizer.ggml.tokens"], *marks]
    file = write(tmp_path, name)
    header = read_gguf(file)
    for key in _KEYS:
        for value in (None, 2**31 - 1, 2**32 - 1):
            figures = {**header.metadata, f"clip.vision.{key}": value}
            changed = replace(header, metadata={each: said for each, said in figures.items() if said is not None})
            monkeypatch.setattr("homenode.model.pictures.mmproj.read_gguf", lambda _, changed=changed: changed)
            found = gguf_picture_spec(file, text, asked=False)
            needed = key in ("embedding_length", "block_count", "attention.head_count", "patch_size")
            if needed and (value is None or key == "block_count"):
                assert found is None, (key, value)
                with pytest.raises(HomenodeError):
                    gguf_picture_spec(file, text, asked=True)


def test_a_tower_has_no_rows_for_more_layers_than_the_text_has(tmp_path: Path) -> None:
    name = "Qwen3VLForConditionalGeneration"
    file, text = write(tmp_path, name), text_of(name)
    assert gguf_picture_spec(file, text | {"llama.block_count": 2}, asked=True)
    with pytest.raises(CheckpointError, match="at most 1, as the text has layers"):
        gguf_picture_spec(file, text | {"llama.block_count": 1}, asked=True)


@pytest.mark.parametrize("name", FILES)
def test_a_tower_whose_axes_the_text_does_not_have_is_used_only_where_it_is_named(tmp_path: Path, name: str) -> None:
    file, axes = write(tmp_path, name), {"llama.rope.dimension_sections": [2, 1, 1, 0]}
    named = gguf_picture_spec(file, text_of(name), asked=True)
    assert named is not None
    assert (gguf_picture_spec(file, text_of(name), asked=False) is None) == bool(named.sections)
    assert gguf_picture_spec(file, text_of(name) | axes, asked=False) is not None
    seeing = {"general.architecture": "qwen3vl", "qwen3vl.embedding_length": TEXT}  # there is no other use for it
    assert gguf_picture_spec(file, text_of(name) | seeing, asked=False) == named


def test_a_file_is_a_tower_by_one_rule(tmp_path: Path) -> None:
    for name in ("X.gguf", "X-mmproj.gguf", "mmproj-X.gguf", "X.MMPROJ-f16.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
        assert is_mmproj(name) == fnmatch.fnmatch(name, MMPROJ_PATTERN) == (name != "X.gguf")
    (tmp_path / "mmproj-X-of-another.gguf").symlink_to(tmp_path / "gone")
    assert find_gguf(tmp_path) == tmp_path / "X.gguf"
    assert gguf_models(each.name for each in tmp_path.iterdir()) == ["X.gguf"]
    found = find_mmproj(tmp_path / "X.gguf", None)
    assert found is not None and found.is_file()


def test_the_file_beside_a_model_is_found(tmp_path: Path) -> None:
    model = tmp_path / "Seer-2B-Q4_K_M.gguf"
    assert find_mmproj(model, None) is None
    for name in ("mmproj-other-F16.gguf", "mmproj-Seer-2B-F16.gguf", "Hearer-mmproj.gguf", "Seer-2B-Q8_0.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    assert find_mmproj(model, None) == tmp_path / "mmproj-Seer-2B-F16.gguf"
    assert find_mmproj(model, "off") is None
    assert find_mmproj(model, str(tmp_path / "Hearer-mmproj.gguf")) == tmp_path / "Hearer-mmproj.gguf"
    with pytest.raises(UserError, match="no such file"):
        find_mmproj(model, str(tmp_path / "missing.gguf"))
