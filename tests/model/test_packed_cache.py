"""The packed cache file: a second load gives the same bits, and whatever is wrong with the file the model loads all the
same.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("homenode._native", reason="the compiled core is not built; `make build` builds it")

from homenode.compute.native import NativeBackend
from homenode.compute.ops import FloatArray, PackedLocation, Weight
from homenode.compute.reference import ReferenceBackend
from homenode.errors import UserError
from homenode.model.part import ModelPart
from homenode.model.parts import PartitionSpec
from homenode.model.spec import Checkpoint
from homenode.model.weights import packed_cache
from homenode.model.weights.load import LoadedModel, load_model
from homenode.model.weights.packed_cache import packed_folder
from tests.model.driver import Driver
from tests.model.split import plan
from tests.model.toys import array_checkpoint, toy_arrays, toy_spec
from tests.paths import ROOT

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """A model whose rows are no multiple of anything."""
    spec = toy_spec(vocab_size=1003, intermediate_size=160)
    return array_checkpoint(tmp_path / "model.bin", spec, toy_arrays(spec))


def load(
    checkpoint: Checkpoint, folder: Path | None, threads: int = 2, **settings: str
) -> tuple[LoadedModel, list[int]]:
    """The model, and tokens it writes."""
    backend = NativeBackend([-1] * threads, spin_us=20)
    model = load_model(checkpoint, backend, packed_cache=folder, **settings)
    (sequence,) = Driver(model, backend).generate([PROMPT], 12)
    return model, sequence.tokens


def packed_file(folder: Path) -> Path:
    (file,) = folder.glob("*.packed")
    return file


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("settings", [{}, {"quantize": "q8_0"}, {"dtype": "float16"}])
def test_a_second_start_computes_the_same_on_any_number_of_threads(
    checkpoint: Checkpoint, tmp_path: Path, threads: int, settings: dict[str, str]
) -> None:
    folder = tmp_path / "cache"
    plain, wanted = load(checkpoint, None, **settings)
    first, tokens = load(checkpoint, folder, **settings)
    assert tokens == wanted and plain.notes == () and len(first.notes) == 1 and "written" in first.notes[0]
    stamp = packed_file(folder).stat()
    second, tokens = load(checkpoint, folder, threads=threads, **settings)
    assert tokens == wanted and second.notes == ()
    assert packed_file(folder).stat().st_ino == stamp.st_ino
    for layer, other in zip(plain.parameters.layers, second.parameters.layers, strict=True):
        for key, weight in layer.items():
            if hasattr(weight, "unpack_row"):
                rows = [0, weight.rows // 2, weight.rows - 1]
                assert all(np.array_equal(weight.unpack_row(r), other[key].unpack_row(r)) for r in rows), key


@pytest.mark.parametrize("size", [1, 10_000, 100_000])
def test_it_does_not_matter_how_many_matrices_are_read_at_once(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    _, wanted = load(checkpoint, tmp_path / "cache")
    monkeypatch.setattr(packed_cache, "_AT_ONCE", size)
    calls: list[int] = []
    read = NativeBackend.weights_from_packed

    def counted(backend: NativeBackend, fd: int, places: Sequence[PackedLocation]) -> list[tuple[Weight, str]]:
        calls.append(len(places))
        return read(backend, fd, places)

    monkeypatch.setattr(NativeBackend, "weights_from_packed", counted)
    model, tokens = load(checkpoint, tmp_path / "cache")
    assert tokens == wanted and model.notes == ()
    matrices = [e for e in checkpoint.tensors.values() if len(e.shape) == 2]
    assert sum(calls) == len(matrices) and (calls == [1] * len(matrices)) == (size == 1)


def test_a_matrix_damaged_among_others_read_with_it(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_cache, "_AT_ONCE", 100_000)
    _, wanted = load(checkpoint, tmp_path / "cache")
    flip(lambda data: len(data) * 2 // 3)(packed_file(tmp_path / "cache"))
    model, tokens = load(checkpoint, tmp_path / "cache")
    assert tokens == wanted and "is damaged (checksum" in model.notes[0]
    assert load(checkpoint, tmp_path / "cache")[0].notes == ()


def test_a_file_that_shrinks_while_it_is_read(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_cache, "_AT_ONCE", 10_000)
    _, wanted = load(checkpoint, tmp_path / "cache")
    file = packed_file(tmp_path / "cache")
    size, read = file.stat().st_size, NativeBackend.weights_from_packed

    def cutting(backend: NativeBackend, fd: int, places: Sequence[PackedLocation]) -> list[tuple[Weight, str]]:
        if places[0].offset > size // 2:
            os.truncate(file, places[0].offset + 1)
        return read(backend, fd, places)

    monkeypatch.setattr(NativeBackend, "weights_from_packed", cutting)
    model, tokens = load(checkpoint, tmp_path / "cache")
    assert tokens == wanted and "cannot be read" in model.notes[0]


def test_another_model_of_the_same_size_and_time_is_not_mixed_up(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """As images of containers and package managers give all files one time."""
    _, before = load(checkpoint, tmp_path / "cache")
    entries = [e for e in checkpoint.tensors.values() if len(e.shape) == 2]
    file = entries[0].file
    stamp = file.stat()
    with file.open("r+b") as opened:
        for entry in entries:
            opened.seek(entry.offset)
            values = np.frombuffer(opened.read(entry.nbytes), "<f4")
            opened.seek(entry.offset)
            opened.write(values[::-1].tobytes())
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    model, tokens = load(checkpoint, tmp_path / "cache")
    assert "have changed" in model.notes[0]
    assert tokens == load(checkpoint, None)[1] != before


def of_version_one(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[8:12] = (1).to_bytes(4, "little")
    file.write_bytes(data)


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def cut_short(file: Path) -> None:
    os.truncate(file, 20)


def empty(file: Path) -> None:
    os.truncate(file, 0)


def flip(place: Callable[[bytes], int]) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        data = bytearray(file.read_bytes())
        data[place(data)] ^= 4
        file.write_bytes(data)

    return damage


def link(file: Path) -> None:
    file.rename(file.with_suffix(".elsewhere"))
    file.symlink_to(file.with_suffix(".elsewhere"))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut, "damaged"),
        (cut_short, "no packed file"),
        (empty, "no packed file"),
        (flip(lambda data: 3), "no packed file"),
        (flip(lambda data: 8), "version"),
        (of_version_one, "it has version 1 of the file format; this is version 3"),
        (flip(lambda data: 14), "header"),
        (flip(lambda data: 20), "header"),
        (flip(lambda data: 40), "header"),
        (flip(lambda data: 4096), "is damaged"),
        (flip(lambda data: len(data) // 2), "is damaged"),
        (flip(lambda data: len(data) - 1), "is damaged"),
        (lambda file: file.chmod(0o666), "others may write it"),
        (link, "symbolic link"),
    ],
)
def test_a_file_that_cannot_be_trusted_is_said_so_and_written_anew(
    checkpoint: Checkpoint, tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    folder = tmp_path / "cache"
    _, wanted = load(checkpoint, folder)
    damage(packed_file(folder))
    model, tokens = load(checkpoint, folder)
    assert tokens == wanted
    assert (
        len(model.notes) == 2
        and words in model.notes[0]
        and "not used" in model.notes[0]
        and "written" in model.notes[1]
    )
    again, tokens = load(checkpoint, folder)
    assert again.notes == () and tokens == wanted
    assert not packed_file(folder).is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_is_not_read(checkpoint: Checkpoint, tmp_path: Path) -> None:
    load(checkpoint, tmp_path / "cache")
    os.chown(packed_file(tmp_path / "cache"), 12345, -1)
    assert "another user" in load(checkpoint, tmp_path / "cache")[0].notes[0]


def test_another_state_of_the_model_is_not_mixed_up(checkpoint: Checkpoint, tmp_path: Path) -> None:
    load(checkpoint, tmp_path / "cache")
    file = next(iter(checkpoint.tensors.values())).file
    os.utime(file, ns=(0, 1))
    checkpoint.files.states.clear()  # it is opened anew
    model, _ = load(checkpoint, tmp_path / "cache")
    assert "have changed" in model.notes[0]
    assert load(checkpoint, tmp_path / "cache")[0].notes == ()


def test_another_packing_is_not_read(checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NativeBackend, "packing", "of long ago")
    load(checkpoint, tmp_path / "cache")
    monkeypatch.undo()
    assert "another version" in load(checkpoint, tmp_path / "cache")[0].notes[0]


def test_each_way_of_keeping_a_model_has_its_own_file(checkpoint: Checkpoint, tmp_path: Path) -> None:
    for settings in ({}, {"quantize": "q8_0"}):
        assert "written" in load(checkpoint, tmp_path, **settings)[0].notes[0]
    for settings in ({}, {"quantize": "q8_0"}):
        assert load(checkpoint, tmp_path, **settings)[0].notes == ()


def test_each_part_of_a_model_has_its_own_file(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Ranks have matrices of the same names and shapes, with other rows."""
    parts = [None, *plan(checkpoint, PartitionSpec(stages=2, ranks=2))]

    def weights(part: ModelPart | None, folder: Path | None) -> tuple[LoadedModel, list[FloatArray]]:
        model = load_model(checkpoint, NativeBackend([-1]), packed_cache=folder, part=part)
        return model, [matrix.unpack_row(row) for matrix in matrices_of(model) for row in (0, matrix.rows - 1)]

    wanted = [weights(part, None)[1] for part in parts]
    for part in parts:
        assert "written" in weights(part, tmp_path)[0].notes[0]
    assert len(list(tmp_path.glob("*.packed"))) == len(parts)
    for part, rows in zip(parts, wanted, strict=True):
        model, found = weights(part, tmp_path)
        assert model.notes == () and all(np.array_equal(a, b) for a, b in zip(rows, found, strict=True))


def test_a_file_of_another_part_is_not_read(checkpoint: Checkpoint, tmp_path: Path) -> None:
    parts = plan(checkpoint, PartitionSpec(ranks=2))
    for part in parts:
        load_model(checkpoint, NativeBackend([-1]), packed_cache=tmp_path / str(part.rank), part=part)
    (first,), (second,) = ((tmp_path / name).glob("*.packed") for name in "01")
    second.write_bytes(first.read_bytes())
    model = load_model(checkpoint, NativeBackend([-1]), packed_cache=tmp_path / "1", part=parts[1])
    assert "another part of the model" in model.notes[0]


def matrices_of(model: LoadedModel) -> list[Any]:
    """All packed matrices, in a fixed order."""
    handles = [
        *model.parameters.top.values(),
        *(handle for layer in model.parameters.layers for handle in layer.values()),
    ]
    return [handle for handle in handles if hasattr(handle, "unpack_row")]


def test_where_nothing_can_be_written_the_model_loads(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, wanted = load(checkpoint, None)
    (tmp_path / "file").write_bytes(b"no folder")
    model, tokens = load(checkpoint, tmp_path / "file")
    assert tokens == wanted and "was not written" in model.notes[-1]

    def refuse(*arguments: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", refuse)
    model, tokens = load(checkpoint, tmp_path / "cache")
    assert tokens == wanted and "No space left" in model.notes[0]
    assert list((tmp_path / "cache").iterdir()) == [], "what was begun is removed"


def test_what_a_writer_left_that_was_killed_is_removed(checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    load(checkpoint, folder)
    left = folder / f".{packed_file(folder).name}.0123456789abcdef"
    left.write_bytes(b"half of it")
    packed_file(folder).unlink()
    load(checkpoint, folder)
    assert [file.name for file in folder.iterdir()] == [packed_file(folder).name]


def test_a_pipe_in_the_place_of_a_file_does_not_hold_the_load(checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    _, wanted = load(checkpoint, folder)
    name = packed_file(folder).name
    packed_file(folder).unlink()
    for pipe in (name, f".{name}.0123456789abcdef"):
        os.mkfifo(folder / pipe)
    model, tokens = load(checkpoint, folder)
    assert tokens == wanted and "no regular file" in model.notes[0]
    assert [file.name for file in folder.iterdir()] == [name] and packed_file(folder).is_file()


WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from homenode.compute.native import NativeBackend
from homenode.model.weights.load import load_model
from tests.model.toys import array_checkpoint, toy_arrays, toy_spec
spec = toy_spec(vocab_size=1003, intermediate_size=160)
made = array_checkpoint(Path(sys.argv[1]), spec, toy_arrays(spec))
made.tensors = {name: replace(entry, file=Path(sys.argv[2])) for name, entry in made.tensors.items()}
print("ready", flush=True)
sys.stdin.readline()
for _ in range(10):
    for file in Path(sys.argv[3]).glob("*.packed"):
        file.unlink(missing_ok=True)
    load_model(made, NativeBackend([-1, -1], spin_us=20), packed_cache=Path(sys.argv[3]))
"""


def test_several_writers_at_once_leave_one_whole_file(checkpoint: Checkpoint, tmp_path: Path) -> None:
    file, folder = next(iter(checkpoint.tensors.values())).file, tmp_path / "cache"
    command = [sys.executable, "-c", WRITER]
    writers = [
        subprocess.Popen(
            [*command, str(tmp_path / f"copy{i}"), str(file), str(folder)], cwd=ROOT, stdin=-1, stdout=-1, text=True
        )
        for i in range(3)
    ]
    for writer in writers:
        assert writer.stdout and writer.stdin and writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin
        writer.stdin.write("go\n")
        writer.stdin.flush()
    assert [writer.wait(timeout=300) for writer in writers] == [0, 0, 0]
    for writer in writers:
        writer.communicate()
    left = [name.name for name in folder.iterdir()]
    assert all(name.endswith(".packed") for name in left), left
    load(checkpoint, folder)  # the last one may have been unlinked by another
    assert load(checkpoint, folder)[0].notes == ()


def test_a_backend_without_packed_weights_says_so(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="packed-cache off"):
        load_model(checkpoint, ReferenceBackend(), packed_cache=tmp_path)


def test_folders_by_their_setting(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.touch()
    assert packed_folder("off", model) is None
    assert packed_folder("beside", model) == packed_folder("beside", tmp_path) == tmp_path
    assert packed_folder("/var/cache/x", model) == Path("/var/cache/x")
