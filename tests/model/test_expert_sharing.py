"""Experts that engines keep in common: the bits of models of their own, in whatever order processes come, go, fail and
come again.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("homenode._native", reason="the compiled core is not built; `make build` builds it")

from homenode.compute.native import NativeBackend
from homenode.compute.reference import ReferenceBackend
from homenode.errors import CheckpointError, HostError, PeerError, UserError
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.part import ModelPart
from homenode.model.parts import PartitionSpec
from homenode.model.spec import Checkpoint
from homenode.model.weights.expert_header import (
    HEADER_BYTES,
    STATE_FAILED,
    STATE_READY,
    WORD_BYTES,
    ShareState,
    state_of,
    state_word,
)
from homenode.model.weights.expert_share import ExpertShare, expert_owners, own_bytes, share_ready, shares_experts
from homenode.model.weights.load import LoadedModel, load_model
from tests.model.driver import Driver
from tests.model.share_process import PROMPT, Process, Seat
from tests.model.split import plan
from tests.model.test_part_weights import handles, values
from tests.model.toys import MIXTURES, array_checkpoint, toy_arrays, toy_spec
from tests.paths import STORIES_MIXTURE, needs_data
from tests.shared_memory import experts_memory
from tests.waiting import PATIENCE_S, wait_until

# 4, 6, 9 and 12 experts, with a shared expert, with a layer without experts, with biases; what is shared is found by
# its name, so that further families say little more.
KINDS = ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "deepseek_v3")


@pytest.fixture(
    params=[
        name if name in KINDS else pytest.param(name, marks=pytest.mark.slow)
        for name in MIXTURES
        if name != "nomic_bert"  # which makes vectors and no tokens
    ]
)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Checkpoint:
    """A mixture of every family that has experts."""
    return toy(tmp_path, request.param)


@pytest.fixture
def mixtral(tmp_path: Path) -> Checkpoint:
    return toy(tmp_path, "mixtral")


def toy(folder: Path, architecture: str, seed: int = 0) -> Checkpoint:
    spec = toy_spec(architecture)
    return array_checkpoint(folder / "model.bin", spec, toy_arrays(spec, seed))


@pytest.fixture
def fd() -> Iterator[int]:
    with experts_memory() as opened:
        yield opened


@pytest.fixture
def start(fd: int) -> Iterator[Callable[..., Process]]:
    """Starts a process with a seat; what is left of them in the end is killed."""
    begun: list[Process] = []

    def start(
        checkpoint: Checkpoint,
        member: int,
        members: int = 2,
        threads: int = 1,
        stops: int | None = None,
        **settings: Any,
    ) -> Process:
        seat = Seat(f"/proc/{os.getpid()}/fd/{fd}", member, members, threads, stops)
        begun.append(Process(seat, checkpoint, **settings))
        return begun[-1]

    yield start
    for process in begun:
        process.end()


def load(
    checkpoint: Checkpoint, fd: int | None, member: int = 0, members: int = 1, threads: int = 2, **settings: Any
) -> tuple[LoadedModel, NativeBackend]:
    backend = NativeBackend([-1] * threads, spin_us=20)
    experts = None if fd is None else ExpertShare(fd, member, members, settings.pop("timeout_s", PATIENCE_S))
    return load_model(checkpoint, backend, experts=experts, **settings), backend


def load_all(checkpoint: Checkpoint, fd: int, members: int, **settings: Any) -> list[tuple[LoadedModel, NativeBackend]]:
    """All members at once, with 1, 2, 3, 1... threads."""
    with ThreadPoolExecutor(members) as pool:
        begun = [
            pool.submit(load, checkpoint, fd, member, members, 1 + member % 3, **settings) for member in range(members)
        ]
        return [loading.result(PATIENCE_S) for loading in begun]


def tokens_of(model: LoadedModel, backend: NativeBackend) -> list[int]:
    (sequence,) = Driver(model, backend).generate([PROMPT], 12)
    return sequence.tokens


def state(fd: int, member: int) -> ShareState:
    return state_of(int.from_bytes(os.pread(fd, WORD_BYTES, WORD_BYTES * state_word(member)), "little"))


@pytest.mark.parametrize("settings", [{}, {"quantize": "q8_0"}])
@pytest.mark.parametrize("members", [1, 2, 3, 9])
def test_all_members_have_the_bits_of_a_model_of_their_own(
    checkpoint: Checkpoint, fd: int, members: int, settings: dict[str, str]
) -> None:
    """Of 8 experts in two layers one of nine members has none."""
    if settings and (members == 9 or checkpoint.spec.architecture == "qwen3_moe"):
        pytest.skip("said with fewer members, and rows of 33 elements are no blocks of 32")
    plain, backend = load(checkpoint, None, **settings)
    part = ModelPart.whole(plain.spec)
    wanted = {expected.name: values(handle) for expected, handle in handles(plain, part)}
    tokens = tokens_of(plain, backend)
    owners = expert_owners(plain.layout, part, members)
    for member, (model, its) in enumerate(load_all(checkpoint, fd, members, **settings)):
        assert all(np.array_equal(values(handle), wanted[expected.name]) for expected, handle in handles(model, part))
        assert tokens_of(model, its) == tokens
        shared = sum(
            its.packed_bytes(m.target, m.rows, m.columns)
            for m in model.layout.matrices
            if owners.get(m.name, member) != member
        )
        seen = its.statistics()
        assert seen["shared_weight_bytes"] == model.shared_bytes == shared
        assert seen["weight_bytes"] + shared == backend.statistics()["weight_bytes"]
        assert own_bytes(model.layout, part, member, members) <= seen["weight_bytes"] + model.layout.vector_bytes
        assert share_ready(fd, member)


@pytest.mark.parametrize(
    "how", [PartitionSpec(ranks=2, experts_whole=True), PartitionSpec(ranks=2), PartitionSpec(stages=2)]
)
def test_parts_share_what_is_of_the_same_number(checkpoint: Checkpoint, how: PartitionSpec) -> None:
    if how.ranks > 1 and not how.experts_whole and checkpoint.spec.architecture != "mixtral":
        pytest.skip("one way to cut the experts of one model does")
    plain, _ = load(checkpoint, None)
    wanted = {expected.name: values(handle) for expected, handle in handles(plain, ModelPart.whole(plain.spec))}
    for part in plan(checkpoint, how):
        with experts_memory() as fd:
            for model, _ in load_all(checkpoint, fd, 2, part=part):
                for expected, handle in handles(model, part):
                    here = wanted[expected.name][tuple(slice(span.first, span.end) for span in expected.cut)]
                    assert np.array_equal(values(handle), here), (part.name, expected.name)


@needs_data
def test_golden_text_of_equal_experts(fd: int) -> None:
    checkpoint = open_checkpoint(STORIES_MIXTURE)
    plain, backend = load(checkpoint, None)
    tokens = tokens_of(plain, backend)
    for model, its in load_all(checkpoint, fd, 3):
        assert model.shared_bytes and tokens_of(model, its) == tokens


def test_who_comes_again_reads_no_expert_and_who_comes_late_waits_for_nobody(mixtral: Checkpoint, fd: int) -> None:
    (first, its), _ = load_all(mixtral, fd, 2)
    tokens, size = tokens_of(first, its), os.fstat(fd).st_size
    with mixtral.path.open("r+b") as file:  # whoever reads an expert now has another
        entry = next(e for name, e in mixtral.tensors.items() if "experts.0" in name)
        file.seek(entry.offset)
        file.write(os.urandom(256))
    os.utime(mixtral.path, ns=(0, mixtral.path.stat().st_mtime_ns))
    stamp = state(fd, 0)
    del first, its
    again: list[tuple[int, int]] = []
    with pytest.raises(CheckpointError, match="was replaced or written"):
        load(mixtral, fd, 0, 2)
    mixtral.files.states.clear()  # as whoever opens the checkpoint anew sees it
    with pytest.raises(UserError, match="files have changed"):
        load(mixtral, fd, 0, 2)
    restore(mixtral, fd)
    model, backend = load(mixtral, fd, 0, 2, progress=lambda done, total: again.append((done, total)))
    dense = sum(m.source_bytes for m in model.layout.matrices if m.expert is None) + model.layout.vector_bytes
    assert tokens_of(model, backend) == tokens and again[-1] == (dense, dense)
    assert state(fd, 0) == stamp and os.fstat(fd).st_size == size


def restore(checkpoint: Checkpoint, fd: int) -> None:
    """Let the memory believe that it is of the files as they are now."""
    with experts_memory() as other:
        with pytest.raises(PeerError):
            load(checkpoint, other, 0, 2, timeout_s=0.0)
        os.pwrite(fd, os.pread(other, 128, 0), 0)


def test_processes_that_load_at_once_write_what_one_alone_writes(
    mixtral: Checkpoint, start: Callable[..., Process], fd: int
) -> None:
    plain, backend = load(mixtral, None)
    begun = [start(mixtral, member, 3, threads=member + 1) for member in range(3)]
    for process in begun:
        kind, tokens, seen, _ = process.says()
        assert kind == "loaded" and tokens == tokens_of(plain, backend) and seen["shared_weight_bytes"] > 0


def test_one_that_is_killed_in_the_middle_is_waited_for_and_begins_again(
    mixtral: Checkpoint, start: Callable[..., Process], fd: int
) -> None:
    """Killed where half of its experts are there; what it has left is not what the next one packs to."""
    plain, backend = load(mixtral, None)
    victim = start(mixtral, 1, stops=15, threads=2)
    assert victim.says() == ("stopped",)
    other = start(mixtral, 0, threads=3)
    victim.kill()
    with pytest.raises(PeerError, match="within 0 s"):  # as another process sees it: it is there, and not ready
        load(mixtral, fd, 0, 2, timeout_s=0.0)
    again = start(mixtral, 1)
    tokens = tokens_of(plain, backend)
    assert again.says()[:2] == ("loaded", tokens) and other.says()[:2] == ("loaded", tokens)
    assert share_ready(fd, 0) and share_ready(fd, 1) and state(fd, 1).pid == again.process.pid


def test_one_that_fails_ends_the_waiting_of_the_others_by_name(
    mixtral: Checkpoint, start: Callable[..., Process], fd: int
) -> None:
    victim, other = start(mixtral, 1, stops=15), start(mixtral, 0, stops=1)
    assert victim.says() == other.says() == ("stopped",)
    other.tell(True)
    until_it_waits(fd, 0)  # a failure that it finds already there is given a minute
    victim_fails(victim)
    kind, name, text = other.says()
    assert (kind, name) == ("failed", "PeerError") and "engine 1" in text
    assert state(fd, 1).state == STATE_FAILED and state(fd, 0).state == STATE_READY
    both = [start(mixtral, member) for member in (1, 0)]
    assert {process.says()[0] for process in both} == {"loaded"}


def until_it_waits(fd: int, member: int) -> None:
    """Its share is ready, and it has looked for the others'."""
    wait_until(lambda: state(fd, member).state == STATE_READY)
    time.sleep(0.2)


def victim_fails(victim: Process) -> None:
    victim.tell(False)
    assert victim.says() == ("failed", "HomenodeError", "told to fail")


def test_other_models_settings_and_parts_are_refused_by_name(mixtral: Checkpoint, fd: int, tmp_path: Path) -> None:
    load_all(mixtral, fd, 2)
    other = toy((tmp_path / "other"), "mixtral", seed=1) if (tmp_path / "other").mkdir() is None else mixtral
    parts = plan(mixtral, PartitionSpec(ranks=2, experts_whole=True))
    for wrong, settings, text in (
        (other, {}, "another model"),
        (mixtral, {"quantize": "q8_0"}, "other formats"),
        (mixtral, {"part": parts[0]}, "another part"),
        (mixtral, {"members": 3}, "another number of engines"),
    ):
        with pytest.raises(UserError, match=text):
            load(wrong, fd, 1, **{"members": 2, **settings})
    assert share_ready(fd, 1)


@pytest.mark.parametrize("seed", range(4))
def test_a_header_of_any_numbers_is_refused_and_nothing_is_mapped_by_it(
    mixtral: Checkpoint, fd: int, seed: int
) -> None:
    noise = random.Random(seed)
    os.pwrite(fd, noise.randbytes(HEADER_BYTES), 0)
    with pytest.raises(UserError, match="not memory for experts"):
        load(mixtral, fd, 0, 2)


@pytest.mark.parametrize("word", [state_word(0), state_word(1)])
def test_states_without_room_for_experts_are_damage(mixtral: Checkpoint, fd: int, word: int) -> None:
    os.pwrite(fd, (STATE_READY << 62).to_bytes(WORD_BYTES, "little"), WORD_BYTES * word)
    with pytest.raises(UserError, match="is damaged"):
        load(mixtral, fd, 0, 2)


def test_states_of_any_processes_keep_nobody_from_filling_his_own_share(mixtral: Checkpoint, fd: int) -> None:
    plain, backend = load(mixtral, None)
    load_all(mixtral, fd, 2)
    for said in (ShareState(1, 1 << 21, 77), ShareState(1, os.getpid(), 1), ShareState(3, 0, 0), ShareState(0, 5, 5)):
        os.pwrite(fd, said.word.to_bytes(WORD_BYTES, "little"), WORD_BYTES * state_word(0))
        model, its = load(mixtral, fd, 0, 2)
        assert tokens_of(model, its) == tokens_of(plain, backend) and state(fd, 0).state == STATE_READY


def test_an_unusable_descriptor_is_refused(mixtral: Checkpoint, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+b") as file, pytest.raises(UserError, match="sealed"):
        load(mixtral, file.fileno(), 0, 2)
    with pytest.raises(HostError):
        load(mixtral, file.fileno() if not file.closed else 1000, 0, 2)


def test_where_nothing_can_be_shared_all_is_as_it_was(tmp_path: Path, fd: int) -> None:
    spec = toy_spec("llama")
    dense = array_checkpoint(tmp_path / "dense.bin", spec, toy_arrays(spec))
    model, backend = load(dense, fd, 0, 2)
    assert model.shared_bytes == 0 and backend.statistics()["shared_weight_bytes"] == 0
    reference = ReferenceBackend()
    assert shares_experts(backend) and not shares_experts(reference)
    mixture = load_model(toy(tmp_path, "mixtral"), reference, experts=ExpertShare(fd, 1, 2))
    assert mixture.shared_bytes == 0 and os.pread(fd, 4096, 0) == bytes(4096)


def test_progress_is_told_while_others_are_waited_for(mixtral: Checkpoint, fd: int) -> None:
    told: list[tuple[int, int]] = []
    with pytest.raises(PeerError, match="engine 1 has not loaded within 2 s"):
        load(mixtral, fd, 0, 2, timeout_s=1.5, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == told[-2] == (told[-1][1], told[-1][1])


class TestPackedCache:
    """Each member takes of the file what it has to fill, and one of them writes it."""

    def test_members_take_their_own_from_the_file(
        self, checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / "cache"
        plain, backend = load(checkpoint, None)
        tokens = tokens_of(plain, backend)
        with experts_memory() as fd:
            loaded = load_all(checkpoint, fd, 2, packed_cache=folder)
        assert [bool(model.notes) for model, _ in loaded] == [True, False]
        assert all(tokens_of(*one) == tokens for one in loaded)
        read: list[str] = []
        monkeypatch.setattr(NativeBackend, "weights_from_packed", counting(NativeBackend.weights_from_packed, read))
        monkeypatch.setattr(NativeBackend, "weight_from_file", None)  # of the model itself nothing is read
        with experts_memory() as fd:
            loaded = load_all(checkpoint, fd, 2, packed_cache=folder)
            assert all(tokens_of(*one) == tokens and not one[0].notes for one in loaded)
            dense = sum(m.expert is None for m in plain.layout.matrices)
            assert len(read) == 2 * dense + len(plain.layout.matrices) - dense
            read.clear()
            model, its = load(checkpoint, fd, 1, 2, packed_cache=folder)
            assert tokens_of(model, its) == tokens and len(read) == dense

    def test_what_is_damaged_is_read_from_the_model_over_what_came_from_the_file(
        self, mixtral: Checkpoint, tmp_path: Path
    ) -> None:
        plain, backend = load(mixtral, None)
        tokens = tokens_of(plain, backend)
        load(mixtral, None, packed_cache=tmp_path / "cache")
        (file,) = (tmp_path / "cache").glob("*.packed")
        whole = file.read_bytes()
        # Experts of the last layer, and the output matrix.
        for at in range(len(whole) - 4096 * 12, len(whole), 4096 * 3):
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with experts_memory() as fd:
                loaded = load_all(mixtral, fd, 2, packed_cache=tmp_path / "cache")
                assert all(tokens_of(*one) == tokens for one in loaded)
                for member, (model, _) in enumerate(loaded):
                    for (expected, handle), (_, good) in zip(
                        handles(model, ModelPart.whole(model.spec)),
                        handles(plain, ModelPart.whole(model.spec)),
                        strict=True,
                    ):
                        assert np.array_equal(values(handle), values(good)), (member, expected.name)


def counting(read: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    def counted(self: NativeBackend, fd: int, places: Any) -> Any:
        names.extend(str(place.offset) for place in places)
        return read(self, fd, places)

    return counted
