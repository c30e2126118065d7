"""The identity of a model: the same for whoever reads any part of it in any way, another one for other content, and no
load goes through while its files become other ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from homenode.compute.reference import ReferenceBackend
from homenode.errors import CheckpointError
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.checkpoint.vocabulary_file import read_vocabulary_text
from homenode.model.files_read import FilesRead
from homenode.model.identity import CommonIdentity, ModelIdentity, model_difference
from homenode.model.part import ModelPart
from homenode.model.parts import PartitionSpec
from homenode.model.weights.load import load_model
from tests.checkpoints import make_folder, make_gguf, toy_config, toy_tensors, write_safetensors
from tests.model.split import plan

PARTS = PartitionSpec(stages=2, ranks=2)
Made = Callable[[Path], Path]  # writes a model into a folder; which path is opened


def single(folder: Path) -> Path:
    return make_folder(folder)


def shards(folder: Path) -> Path:
    """The model of `single` in two files, with an index."""
    make_folder(folder)
    (folder / "model.safetensors").unlink()
    tensors = toy_tensors(toy_config())
    names = sorted(tensors)
    where = {}
    for number, some in enumerate((names[::2], names[1::2]), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        write_safetensors(folder / file, {name: tensors[name] for name in some})
        where |= dict.fromkeys(some, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return folder


def gguf(folder: Path) -> Path:
    return make_gguf(folder / "model.gguf")


FORMS = pytest.mark.parametrize("make", [single, shards, gguf])


def identity(path: Path, part: ModelPart | None = None) -> ModelIdentity:
    return load_model(open_checkpoint(path), ReferenceBackend(), part=part).identity


def last_tensor_changed(path: Path) -> Path:
    """Another value in the middle of a matrix of the last file, under the same size and time; the file."""
    entry = max(open_checkpoint(path).tensors.values(), key=lambda each: (each.file.name, each.nbytes))
    stamp = entry.file.stat()
    data = bytearray(entry.file.read_bytes())
    for at in range(entry.offset, entry.offset + entry.nbytes, 4):
        data[at] ^= 1
    entry.file.write_bytes(data)
    os.utime(entry.file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    return entry.file


@FORMS
def test_every_part_has_the_identity_of_the_whole(make: Made, tmp_path: Path) -> None:
    path = make(tmp_path)
    parts = plan(open_checkpoint(path), PARTS)
    assert len(parts) == 4
    assert {repr(identity(path, part)) for part in (None, *parts)} == {repr(identity(path))}


def test_how_tensors_are_spread_over_files_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir(), (tmp_path / "two").mkdir()
    one, two = identity(single(tmp_path / "one")), identity(shards(tmp_path / "two"))
    assert one.weights == two.weights and one.figures == two.figures


@FORMS
def test_other_weights_are_named_by_their_file(make: Made, tmp_path: Path) -> None:
    path = make(tmp_path)
    before = identity(path)
    file = last_tensor_changed(path)
    assert model_difference(before, identity(path)) == f"{file.name} holds other weights"


def test_figures_are_named(tmp_path: Path) -> None:
    path = single(tmp_path)
    before = identity(path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"rope_theta": 20000.0}))
    assert "figures" in str(model_difference(before, identity(path)))


def test_a_shard_more_is_named(tmp_path: Path) -> None:
    first = ModelIdentity("w", {"a.safetensors": "1"}, "f")
    second = ModelIdentity("w", {"a.safetensors": "1", "b.safetensors": "2"}, "f")
    assert "b.safetensors" in str(model_difference(first, second)) and "b.safetensors" in str(
        model_difference(second, first)
    )


def test_another_text_of_a_file_that_both_have_read_is_named() -> None:
    first = ModelIdentity("w", {}, "f", {"/m/tokenizer.json": "1", "/m/config.json": "2"})
    assert model_difference(first, ModelIdentity("w", {}, "f", {"/m/config.json": "2"})) is None
    other = ModelIdentity("w", {}, "f", {"/m/config.json": "2", "/m/tokenizer.json": "3"})
    assert model_difference(first, other) == "/m/tokenizer.json holds another text"


def test_the_first_of_a_group_says_what_all_have_to_have_read() -> None:
    group = CommonIdentity("/models/m")
    first, other = ModelIdentity("w", {"m": "1"}, "f"), ModelIdentity("v", {"m": "2"}, "f")
    assert [group.objection("worker 0", first), group.objection("worker 1", first)] == [None, None]
    told = str(group.objection("worker 2", other))
    assert told.startswith("worker 2 ") and "/models/m" in told and "m holds other weights" in told
    assert group.objection("worker 2", first) is None


@pytest.mark.parametrize("in_place", [True, False])
@FORMS
def test_a_file_that_changes_between_header_and_weights(make: Made, tmp_path: Path, in_place: bool) -> None:
    checkpoint = open_checkpoint(make(tmp_path))
    file = next(iter(checkpoint.tensors.values())).file
    rewrite(file, in_place)
    with pytest.raises(CheckpointError, match=f"{file.name} was replaced or written while"):
        load_model(checkpoint, ReferenceBackend())


@pytest.mark.parametrize("in_place", [True, False])
@FORMS
def test_a_file_that_changes_while_weights_are_read(make: Made, tmp_path: Path, in_place: bool) -> None:
    checkpoint = open_checkpoint(make(tmp_path))
    file = next(iter(checkpoint.tensors.values())).file
    changed = []

    def change(done: int, total: int) -> None:
        if not changed and 2 * done > total:
            changed.append(done)
            rewrite(file, in_place)

    with pytest.raises(CheckpointError, match=f"{file.name} was replaced or written while"):
        load_model(checkpoint, ReferenceBackend(), progress=change)
    assert changed


def test_a_file_that_changes_between_two_readings_of_its_text(tmp_path: Path) -> None:
    file = single(tmp_path) / "tokenizer.json"
    file.write_text("{}")
    stamp, read = file.stat(), FilesRead()
    read_vocabulary_text(tmp_path, read)
    assert [*read.texts] == [str(file)]
    file.write_text("[]")
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    with pytest.raises(CheckpointError, match="was replaced"):
        read.took(file, "another", 7)


def rewrite(file: Path, in_place: bool) -> None:
    """The same content again, written at another time: in the same file, or in one that takes its name."""
    data, later = file.read_bytes(), file.stat().st_mtime_ns + 10**9
    if not in_place:
        file.with_suffix(".new").write_bytes(data)
        file.with_suffix(".new").rename(file)
    else:
        file.write_bytes(data)
    os.utime(file, ns=(later, later))
