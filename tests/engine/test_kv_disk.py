"""KV that stays on disk: an engine that starts again has the tokens and the bits of the one before, and computes only
what is new; what differs in anything that counts is not found.
"""

from __future__ import annotations

import gc
import json
import struct
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from homenode.compute.ops import KvGeometry, LayerKv
from homenode.engine.api.local import LocalEngine
from homenode.engine.config import EngineConfig
from homenode.engine.devices import CPU
from homenode.engine.disk_config import DiskConfig
from homenode.engine.kv_disk.checks import disk_problems
from homenode.engine.kv_disk.store_thread import BlocksIn, BlocksOut
from homenode.engine.runtime import build
from homenode.errors import HostError, UnsupportedError, UserError
from tests.checkpoints import make_folder
from tests.engine.engines import greedy, run_all
from tests.engine.state_engines import Bits, bits_of, engine_of, prompts_of
from tests.waiting import wait_until

PROMPTS = prompts_of((150, 97, 33))
PARAMS = greedy(6, logprobs=0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("toy"))


def life(model: Path, **settings: Any) -> tuple[list[Bits], list[int], Any]:
    """The answers of an engine to all prompts, what was cached of each, and the figures of its store."""
    engine = engine_of(model, **settings)
    try:
        outputs = [run_all(engine, [p], [PARAMS], first_id=n)[0] for n, p in enumerate(PROMPTS, 1)]
        wait_until(lambda: is_at_rest(engine))
        return [bits_of(each) for each in outputs], [each[0].cached_tokens for each in outputs], engine.statistics.disk
    finally:
        engine.close()


def is_at_rest(engine: LocalEngine) -> bool:
    now = engine.statistics
    return not now.num_running and (now.disk is None or now.disk.stored_tokens + now.disk.hit_tokens >= 256)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests of these models are of no use to anybody later."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def key_file(folder: Path, digit: str = "a") -> str:
    file = folder / f"key-{digit}"
    file.write_text(digit * 64 + "\n")
    return str(file)


@pytest.mark.parametrize("with_key", [False, True])
def test_the_next_engine_finds_what_the_last_one_left(model: Path, tmp_path: Path, with_key: bool) -> None:
    alone, _, none = life(model)
    assert none is None
    disk = {"kv_disk": str(tmp_path / "kv"), **({"kv_disk_key": key_file(tmp_path)} if with_key else {})}
    first, cached, kept = life(model, **disk)
    assert (first, cached, kept.stored_tokens) == (alone, [0, 0, 0], 256)
    again, cached, kept = life(model, **disk)
    assert again == alone and cached == [128, 96, 32]
    assert (kept.hit_tokens, kept.stored_tokens, kept.rejected_blocks) == (256, 0, 0)


def test_what_was_opened_is_closed_when_the_start_fails(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start has the same folder and the same endpoint."""
    pytest.importorskip("zmq")

    def fails(*_: object) -> None:
        raise HostError("planted")

    with TemporaryDirectory(prefix="kv") as folder:  # its path is short enough for sockets
        events = json.dumps({"enable_kv_cache_events": True, "endpoint": f"ipc://{folder}/events"})
        monkeypatch.setattr(build, "watch_of", fails)
        for _ in range(2):
            with pytest.raises(HostError, match="planted"):
                engine_of(model, kv_disk=str(tmp_path / "kv"), kv_events_config=events)


def test_what_counts_is_part_of_the_identity(model: Path, tmp_path: Path) -> None:
    """A weight in the middle of a matrix, and the key; neither the place nor the name of the model."""
    disk = {"kv_disk": str(tmp_path / "kv")}
    life(model, **disk)
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in model.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert life(copy, **disk)[1] == [128, 96, 32]
    weights = copy / "model.safetensors"
    data = bytearray(weights.read_bytes())
    head = struct.unpack_from("<Q", data)[0]
    at = 8 + head + (len(data) - 8 - head) // 8 * 4 + 2
    data[at] ^= 1
    weights.write_bytes(data)
    assert life(copy, **disk)[1] == [0, 0, 0]
    assert life(model, **disk, kv_disk_key=key_file(tmp_path, "b"))[1] == [0, 0, 0]


def test_nothing_is_left_of_what_was_moved(model: Path, tmp_path: Path) -> None:
    """Of a store that keeps nothing for long, while prompts come again and again."""
    engine = engine_of(model, kv_disk=str(tmp_path / "kv"), kv_disk_size="40KiB", kv_cache_memory="160KiB")
    try:
        for number in range(40):
            run_all(engine, [PROMPTS[number % 3][number % 7 :]], [PARAMS], first_id=number + 1)
        gc.collect()
        left = [each for each in gc.get_objects() if isinstance(each, BlocksIn | BlocksOut)]
        assert len(left) <= 4, "those that the thread has not answered yet"
    finally:
        engine.close()


def test_copies_in_memory_are_found_when_kv_memory_was_used_for_others(model: Path) -> None:
    engine = engine_of(model, kv_park_size="64MiB", kv_cache_memory="160KiB")
    try:
        for turn in range(2):
            for number, prompt in enumerate(PROMPTS):
                output = run_all(engine, [prompt], [PARAMS], first_id=1 + 10 * turn + number)[0]
                assert output[0].cached_tokens == turn * ((len(prompt) - 1) // 32) * 32
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"kv_disk": "/nowhere/at/all"}, "parent /nowhere/at is not there"),
        ({"kv_disk": "/dev/null"}, "is no folder"),
        ({"kv_disk": ".", "kv_disk_key": "/nowhere"}, "/nowhere: it cannot be read"),
        ({"kv_disk": ".", "kv_disk_key": "/dev/null"}, "it is no file"),
    ],
)
def test_what_cannot_be_is_refused_by_name(model: Path, settings: dict[str, str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        engine_of(model, **settings)


def test_other_backends_say_that_they_cannot(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="kv-disk"):
        engine_of(model, kv_disk=str(tmp_path), backend="reference")


@pytest.mark.parametrize(
    ("state", "dtype", "widths", "says"),
    [(True, "bf16", ((8, 8),), "a state"), (False, "int8", ((8, 8), (4, 4)), "unlike shapes"),
     (False, "bf16", ((8, 8), (8, 4)), "unlike shapes"), (False, "bf16", ((8, 8), (4, 0)), None)],
)  # fmt: skip
def test_what_several_workers_cannot_keep_is_refused_by_name(
    tmp_path: Path, state: bool, dtype: str, widths: tuple[tuple[int, int], ...], says: str | None
) -> None:
    """One worker keeps all of it."""
    of_states: Any = object() if state else None
    geometry = KvGeometry(tuple(LayerKv(1, key, value) for key, value in widths), 16, dtype, of_states)
    config = replace(EngineConfig(), disk=DiskConfig(kv_disk=str(tmp_path)))
    assert not disk_problems(config, geometry, [CPU], inline=True)
    found = disk_problems(config, geometry, [CPU, CPU], inline=False)
    assert [problem.param for problem in found] == ([] if says is None else ["kv_disk"])
    assert all(str(says) in problem.message and "--tensor-parallel-size" in problem.message for problem in found)
