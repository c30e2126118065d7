"""Engines whose KV memory grows and goes back: the same tokens, and memory as told."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import homenode.engine.runtime.build
from homenode.engine.api.local import LocalEngine
from homenode.engine.memory.headroom import headroom_of
from homenode.host.topology.source import LiveSource
from tests.engine.engines import config_for, greedy, run_all, tokens_of
from tests.waiting import wait_until

BUILTIN = Path(__file__).resolve().parents[2] / "src/homenode/builtin"
PROMPTS = [[1, *(3 + (7 * n + k) % 200 for k in range(90 + 30 * n))] for n in range(6)]


@pytest.fixture
def engine_of() -> Iterator[Callable[..., LocalEngine]]:
    made: list[LocalEngine] = []

    def make(**settings: object) -> LocalEngine:
        made.append(LocalEngine(config_for(BUILTIN, threads=1, block_size=32, **settings)))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def _present(engine: LocalEngine) -> int:
    pages = engine.statistics.compute.get("kv_pages")
    assert isinstance(pages, dict)
    return int(pages["present"])


def _tokens(engine: LocalEngine, first_id: int) -> list[list[int]]:
    return [tokens_of(o) for o in run_all(engine, PROMPTS, [greedy(40)] * len(PROMPTS), first_id)]


def test_tokens_are_those_of_memory_taken_at_once_through_growth_release_and_growth(
    engine_of: Callable[..., LocalEngine],
) -> None:
    whole = engine_of(kv_cache_memory="16MiB", kv_cache_prealloc=True)
    expected = _tokens(whole, 1)
    assert _present(whole) >= 16 << 20
    assert "16MiB is taken at the start, as --kv-cache-prealloc" in str(whole.ready.details["kv_growth"])
    growing = engine_of(kv_cache_memory="16MiB", kv_cache_release=0.3)
    assert "may grow to 16MiB" in str(growing.ready.details["kv_growth"])
    released = [0]
    for round_number in range(3):
        assert _tokens(growing, 1 + 100 * round_number) == expected
        wait_until(lambda: 0 < _present(growing) < 16 << 20)
        wait_until(lambda: growing.statistics.kv_released_bytes > released[-1] and _present(growing) <= 2 << 20)
        released.append(growing.statistics.kv_released_bytes)
    assert growing.statistics.kv_released_bytes > 0


def test_a_group_that_is_full_ends_in_preemption_and_a_word(
    engine_of: Callable[..., LocalEngine],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Files as of a control group whose memory.high is nearly reached; the machine's own are beside them."""
    group = tmp_path / "sys/fs/cgroup/box"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/box\n")
    (tmp_path / "proc/meminfo").write_text(Path("/proc/meminfo").read_text())
    limit, room = 1 << 30, 5 << 19  # a chunk of 2 MiB, where all of them together need more
    (group / "memory.high").write_text(f"{limit}\n")
    (group / "memory.max").write_text("max\n")
    used = limit - (64 << 20) - room

    class Group:
        """A group that fills as pages come."""

        def __init__(self) -> None:
            self._files = LiveSource(str(tmp_path))

        def __getattr__(self, name: str) -> object:
            return getattr(self._files, name)

        def read(self, path: str) -> str | None:
            if path.endswith("memory.current"):
                return str(used + taken[0])
            return self._files.read(path)

    taken = [0]
    whole = engine_of(kv_cache_memory="16MiB", kv_cache_prealloc=True)
    expected = _tokens(whole, 1)
    monkeypatch.setattr(homenode.engine.runtime.build, "headroom_of", lambda parts: headroom_of(source=Group()))  # type: ignore[arg-type]
    growing = engine_of(kv_cache_memory="16MiB", kv_cache_release=0.0)
    change = growing.executor.change_pages

    def counted(changes: list[object]) -> None:
        taken[0] += sum(c.past - c.first for c in changes) * block_bytes  # type: ignore[attr-defined]
        change(changes)  # type: ignore[arg-type]

    block_bytes = (16 << 20) // growing.ready.num_blocks
    monkeypatch.setattr(growing.executor, "change_pages", counted)
    assert _tokens(growing, 1) == expected
    wait_until(lambda: growing.statistics.preemptions > 0 and growing.statistics.kv_growths_refused > 0)
    assert taken[0] <= room
    said = [record.message for record in caplog.records]
    assert any("KV memory cannot grow beyond" in text and "memory.high" in text for text in said)


def test_a_setting_of_zero_keeps_what_was_taken(engine_of: Callable[..., LocalEngine]) -> None:
    engine = engine_of(kv_cache_memory="16MiB", kv_cache_release=0.0)
    _tokens(engine, 1)
    assert "is kept" in str(engine.ready.details["kv_growth"])
    assert dataclasses.asdict(config_for(BUILTIN).kv)["kv_cache_release"] == 60.0
