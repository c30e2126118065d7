"""Whatever worker ends or stands still, in whatever it was doing: every request in flight ends with the text it would
have had, and the engine goes on.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from homenode.engine.api.local import LocalEngine
from homenode.engine.executor import launch
from homenode.engine.messages import Output
from homenode.engine.request import Request
from tests.engine.engines import greedy, tokens_of
from tests.engine.mortal_worker import MARKS
from tests.engine.test_golden import golden
from tests.engine.test_workers import TIGHT, engine_of, executor_of, worker_pids
from tests.paths import ROOT, STORIES, needs_data
from tests.waiting import PATIENCE_S

pytestmark = needs_data

STAGES: dict[str, Any] = {"pipeline_parallel_size": 2}
RANKS: dict[str, Any] = {"tensor_parallel_size": 2}
BOTH: dict[str, Any] = STAGES | RANKS
SPLITS = {"stages": STAGES, "ranks": RANKS, "stages of ranks": BOTH}
IN_A_STEP = ("chunk", "decode", "mixed", "again")
LONG, TOKENS, LONG_TOKENS = 100, 90, 24  # tokens of a long prompt; drawn after a short one, and after a long one
AGAIN_S = 5.0  # in which an engine of a toy model is to serve again
SILENT_S = 5.0


@pytest.fixture(autouse=True)
def mortal_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Engines of this module start workers that can be told when to end."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.setenv(MARKS, str(tmp_path))
    monkeypatch.setattr(
        launch,
        "make_executor",
        functools.partial(launch.make_executor, program="tests.engine.mortal_worker"),
    )
    yield


class Clients:
    """Requests of short and long prompts, more than there is memory for at once, and what became of them."""

    def __init__(self, engine: LocalEngine) -> None:
        self.engine = engine
        self.sink: SimpleQueue[Output] = SimpleQueue()
        self.wanted: dict[int, list[int]] = {}
        self.found: dict[int, list[Output]] = {}
        self.left = 0

    def ask(self) -> None:
        """Long prompts first, whose chunks are alone; when they draw, short ones; when those draw, long ones again."""
        self._submit([self._long(entry) for entry in golden()[:2]])
        self.hear()
        self._submit([(e["prompt_ids"], e["greedy_ids"][:TOKENS]) for e in golden()])
        for _ in range(4):
            self.hear()
        self._submit([self._long(entry) for entry in golden()[2:4]])

    def hear(self) -> Output:
        output = self.sink.get(timeout=PATIENCE_S)
        self.found[output.id].append(output)
        self.left -= output.finish_reason is not None
        return output

    def hear_up_to(self, mark: Path) -> None:
        """Outputs up to a moment that is marked as done, of more requests if those there are end before it comes."""
        for _ in range(5):
            while self.left and not mark.exists():
                self.hear()
            if mark.exists():
                return
            self.ask()
        raise AssertionError(f"nobody came to {mark.name}")

    def check(self) -> None:
        """All end, with the text of a model that nothing happens to."""
        while self.left:
            self.hear()
        assert {request: tokens_of(outputs) for request, outputs in self.found.items()} == self.wanted

    def _long(self, entry: dict[str, Any]) -> tuple[list[int], list[int]]:
        text = entry["greedy_ids"]
        cut = LONG - len(entry["prompt_ids"])
        return [*entry["prompt_ids"], *text[:cut]], text[cut : cut + LONG_TOKENS]

    def _submit(self, some: list[tuple[list[int], list[int]]]) -> None:
        requests = []
        for prompt, wanted in some:
            number = len(self.wanted) + 1
            self.wanted[number], self.found[number] = wanted, []
            requests.append(Request(id=number, prompt_ids=prompt, params=greedy(len(wanted))))
        self.left += len(requests)
        self.engine.submit(requests, self.sink)


def mark(folder: Path, moment: str, worker: int, number: signal.Signals = signal.SIGKILL, times: int = 1) -> Path:
    """Have a worker meet its end, and those in its place as well; the file that will say when the last did."""
    made = folder / f"new-{moment}-{worker}"
    made.write_text(str(times))
    made.rename(folder / f"{moment}-{worker}-{int(number)}")
    return folder / f"done-{moment}-{worker}-{int(number)}"


def engine_for(split: str, silent_s: float = 30.0) -> Any:
    # Of each worker: the same number of blocks, fewer than are wanted at once.
    memory = "128KiB" if split == "stages of ranks" else "256KiB"
    return engine_of(
        STORIES, kv_cache_memory=memory, max_model_len=256, worker_timeout=silent_s, **TIGHT, **SPLITS[split]
    )


def quickly(quick: str) -> Any:
    """Every split, of which one is for a usual run: the others lose in the same way what is lost."""
    marks = [pytest.param(split, marks=() if split == quick else pytest.mark.slow) for split in SPLITS]
    return pytest.mark.parametrize("split", marks)


def last_of(split: str) -> int:
    return 2 ** len(SPLITS[split]) - 1


def pairs(moments: tuple[str, ...], quick: dict[str, tuple[str, ...]]) -> Any:
    """Every split with every moment. `quick`: those of a usual run, each moment once; four workers lose nothing that
    two do not.
    """
    some = [
        pytest.param(split, moment, marks=() if moment in quick.get(split, ()) else pytest.mark.slow)
        for split in SPLITS
        for moment in moments
    ]
    return pytest.mark.parametrize(("split", "moment"), some)


@pairs(IN_A_STEP, {"stages": ("decode", "again"), "ranks": ("chunk", "mixed")})
def test_killed_in_a_step(split: str, moment: str, tmp_path: Path) -> None:
    """The first worker, then the last."""
    with engine_for(split) as engine:
        clients = Clients(engine)
        first = mark(tmp_path, moment, 0)
        clients.ask()
        clients.hear_up_to(first)
        clients.hear_up_to(mark(tmp_path, "again" if moment == "again" else "decode", last_of(split)))
        clients.check()
        assert executor_of(engine).statistics()["restarts"] == 2


@pairs(("first", "loading", "laying"), {"stages": ("laying",), "ranks": ("first", "loading")})
def test_killed_while_another_loss_is_made_good(split: str, moment: str, tmp_path: Path) -> None:
    """In the first step afterwards, or as the one that replaces another: while it loads, and when it gets
    its channels.
    """
    with engine_for(split) as engine:
        clients = Clients(engine)
        mark(tmp_path, "decode", 0)
        second = mark(tmp_path, moment, last_of(split) if moment == "first" else 0)
        clients.ask()
        clients.hear_up_to(second)
        clients.check()
        assert executor_of(engine).statistics()["restarts"] == 2


@quickly("ranks")
def test_killed_at_rest(split: str) -> None:
    with engine_for(split) as engine:
        for victim in (0, last_of(split)):
            os.kill(worker_pids(engine)[victim], signal.SIGKILL)
            clients = Clients(engine)
            clients.ask()
            clients.check()
        assert executor_of(engine).statistics()["restarts"] == 2


MOMENTS = ("chunk", "decode", "loading", "mixed", "again", "first", "laying")


@pytest.mark.alone
@pairs(MOMENTS, {"ranks": ("decode",)})  # the others take as long, and a silent worker is silent
def test_standing_still(split: str, moment: str, tmp_path: Path) -> None:
    with engine_for(split, SILENT_S) as engine:
        clients, last = Clients(engine), last_of(split)
        done = mark(tmp_path, moment, last, signal.SIGSTOP)
        second = moment not in IN_A_STEP
        if second:
            mark(tmp_path, "decode", last if moment in ("loading", "laying") else 0)
        clients.ask()
        clients.hear_up_to(done)
        clients.check()
        assert executor_of(engine).statistics()["restarts"] == 1 + second


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("split", SPLITS)
def test_standing_still_at_rest(split: str) -> None:
    with engine_for(split, SILENT_S) as engine:
        os.kill(worker_pids(engine)[last_of(split)], signal.SIGSTOP)
        clients = Clients(engine)
        clients.ask()
        clients.check()
        assert executor_of(engine).statistics()["restarts"] == 1


@quickly("ranks")
def test_a_request_that_loses_workers_again_and_again_ends_by_name(split: str, tmp_path: Path) -> None:
    """What was told of it stays told; those who come later do not suffer."""
    with engine_for(split) as engine:
        entry, sink = golden()[0], SimpleQueue[Output]()
        engine.submit([Request(id=1, prompt_ids=entry["prompt_ids"], params=greedy(TOKENS))], sink)
        heard = [sink.get(timeout=PATIENCE_S)]
        done = mark(tmp_path, "decode", last_of(split), times=4)
        while heard[-1].finish_reason is None:
            heard.append(sink.get(timeout=PATIENCE_S))
        assert done.exists()
        assert heard[-1].error_kind == "WorkerLostError" and str(heard[-1].error).startswith("worker_lost")
        told = tokens_of(heard)
        assert told == entry["greedy_ids"][: len(told)]
        clients = Clients(engine)
        clients.ask()
        clients.check()


@pytest.mark.alone
@quickly("stages of ranks")
def test_an_engine_serves_again_within_seconds(split: str, tmp_path: Path) -> None:
    with engine_for(split) as engine:
        clients, executor = Clients(engine), executor_of(engine)
        clients.ask()
        done = mark(tmp_path, "decode", 0)
        clients.hear_up_to(done)
        while not (executor.serving and executor.statistics()["restarts"]):
            clients.hear()
        again = time.monotonic() - float(done.read_text())
        clients.check()
        assert again < AGAIN_S
