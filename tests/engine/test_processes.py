"""Workers as processes, with scripted ones: steps in order, losses at every moment, and an end without traces."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import pytest

from homenode.engine.binding import EngineBinding
from homenode.engine.channels.messages import Join
from homenode.engine.config import EngineConfig
from homenode.engine.errors import StepError, StepsLostError
from homenode.engine.executor.processes import ProcessExecutor
from homenode.engine.executor.worker_process import WorkerProcess
from homenode.engine.plan.worker_layout import WorkerPlan
from homenode.engine.step import StartSequence, Step, StepItem, StepResult, WorkerLimits
from homenode.errors import CapacityError, CheckpointError, PeerError
from homenode.model.part import IndexRange, ModelPart
from homenode.sampling import SamplingParams
from tests.engine.scripted_worker import BLOCKS, token_of
from tests.engine.socket_channels import SocketChannels
from tests.paths import ROOT
from tests.waiting import PATIENCE_S, wait_until

SILENT_S = (
    5.0  # where a worker stands still; elsewhere nobody shall be taken for silent on a machine with much else to do
)
NOTHING = IndexRange(0, 0)


@pytest.fixture(autouse=True)
def find_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's interpreter does not look where it is started; the scripted worker is one of the tests' modules."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))


def part(stage: int, stages: int, rank: int, ranks: int) -> ModelPart:
    return ModelPart(
        IndexRange(stage, 1), stage, stages, rank, ranks, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, ()
    )


class Driver:
    """An executor of scripted workers, and a sequence that decodes on it."""

    def __init__(
        self,
        folder: Path,
        stages: int,
        ranks: int,
        start: bool = True,
        silent_s: float = PATIENCE_S,
        exports_kv: bool = False,
    ) -> None:
        config = EngineConfig.of(None, {"worker_timeout": silent_s})
        self.config = replace(config, model=replace(config.model, path=str(folder)))
        parts = [part(stage, stages, rank, ranks) for stage in range(stages) for rank in range(ranks)]
        self.plans = [WorkerPlan(n, f"homenode-worker-{n}", "cpu", p, EngineBinding((0,))) for n, p in enumerate(parts)]
        self.executor = ProcessExecutor(
            self.plans,
            self._join,
            lambda generation: SocketChannels([p.stage for p in self.plans]),
            silent_s,
            "tests.engine.scripted_worker",
            exports_kv=exports_kv,
            model=str(folder),
        )
        self.called: SimpleQueue[None] = SimpleQueue()
        self.executor.on_result(lambda: self.called.put(None))
        self.number = 0
        self.seq = 0
        if start:
            self.start()

    def start(self) -> None:
        fits = self.executor.start()
        assert [fit.num_blocks for fit in fits] == [BLOCKS + n for n in range(len(self.plans))]
        self.executor.lay(
            WorkerLimits(num_blocks=BLOCKS, block_size=32, max_model_len=4096, vocab_size=1000, max_sampled_rows=16)
        )

    def _join(self, plan: WorkerPlan) -> Join:
        return Join(plan.number, 0, self.config, plan.device, plan.part, plan.binding, [])

    def begin(self, prompt: int = 3) -> None:
        """A new sequence, its prompt in one step."""
        self.seq += 1
        self.position = prompt
        start = StartSequence(self.seq, list(range(prompt)), prompt, SamplingParams(max_tokens=100, seed=1))
        self._submit(Step(self._next(), [], [start], [StepItem(self.seq, 0, prompt, [0], 1)]))

    def go_on(self) -> None:
        """Its next token."""
        self.position += 1
        self._submit(Step(self._next(), [], [], [StepItem(self.seq, self.position - 1, 1, [], 1)]))

    def _next(self) -> int:
        self.number += 1
        return self.number

    def _submit(self, step: Step) -> None:
        self.executor.submit(step)

    def expect(self) -> None:
        """The token of the step sent last."""
        result = self.executor.result(PATIENCE_S)
        assert isinstance(result, StepResult) and result.number == self.number
        assert [(a.seq, a.tokens) for a in result.advances] == [(self.seq, [token_of(self.seq, self.position - 1)])]

    def run(self, tokens: int) -> None:
        """A sequence from its prompt on."""
        self.begin()
        self.expect()
        for _ in range(tokens):
            self.go_on()
            self.expect()

    def await_serving(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not self.executor.serving:
            self.called.get(timeout=max(0.01, deadline - time.monotonic()))

    def pids(self) -> list[int]:
        processes = [member.process for member in self.executor.handles]
        return [process.pid for process in processes if isinstance(process, WorkerProcess)]


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    made: list[Driver] = []

    def make(
        stages: int, ranks: int, start: bool = True, silent_s: float = PATIENCE_S, exports_kv: bool = False
    ) -> Driver:
        made.append(Driver(tmp_path, stages, ranks, start, silent_s, exports_kv))
        return made[-1]

    yield make
    for driver in made:
        pids = driver.pids()
        driver.executor.close()
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()], "workers are left behind"


@pytest.mark.parametrize(("stages", "ranks"), [(2, 1), (1, 2), (2, 2)])
def test_steps_go_through_all_workers(drive: Callable[..., Driver], stages: int, ranks: int) -> None:
    driver = drive(stages, ranks)
    driver.run(5)
    driver.run(3)
    names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in driver.pids()]
    assert names == [f"homenode-worker-{n}"[:15] for n in range(stages * ranks)]
    assert all(
        f"homenode-worker-{n}".encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        for n, pid in enumerate(driver.pids())
    )
    # Earlier stages may say what the last step took after its result, and nobody is called for that.
    wait_until(lambda: driver.executor.statistics()["stages"][0]["busy_s"] >= 0.0095, driver.executor.statistics)
    figures = driver.executor.statistics()
    assert [stage["busy_s"] for stage in figures["stages"]] == pytest.approx([0.010] * stages)
    assert figures["weight_bytes"] == 1000 * stages * ranks and figures["restarts"] == 0
    assert driver.executor.pending == 0 and driver.executor.result(0) is None


def test_steps_overlap(drive: Callable[..., Driver]) -> None:
    driver = drive(3, 1)
    for _ in range(10):
        driver.begin()
    assert [driver.executor.result(PATIENCE_S).number for _ in range(10)] == list(range(1, 11))  # type: ignore[union-attr]


def test_a_failed_step_loses_those_after_it_and_nobody_else(drive: Callable[..., Driver], tmp_path: Path) -> None:
    driver = drive(2, 2)
    driver.run(2)
    (tmp_path / "fails-1").touch()
    driver.go_on()
    driver.begin()
    with pytest.raises(StepError) as failed:
        driver.executor.result(PATIENCE_S)
    assert failed.value.kind == "ValueError" and not failed.value.fatal and not isinstance(failed.value, StepsLostError)
    assert driver.executor.serving and driver.executor.pending == 0
    before = driver.pids()
    driver.run(3)
    assert driver.pids() == before


def test_where_others_use_kv_memory_a_failure_is_told_when_nobody_is_at_the_step(
    drive: Callable[..., Driver], tmp_path: Path
) -> None:
    driver = drive(1, 2, exports_kv=True)
    driver.run(2)
    (tmp_path / "slow-0").touch()
    (tmp_path / "fails-1").touch()
    driver.go_on()
    driver.begin()
    with pytest.raises(StepError) as failed:
        driver.executor.result(PATIENCE_S)
    assert failed.value.kind == "ValueError" and not isinstance(failed.value, StepsLostError)
    assert all(member.is_ready for member in driver.executor.handles), "told too early"
    assert driver.executor.serving and driver.executor.pending == 0
    driver.run(3)


def test_where_others_use_kv_memory_a_loss_takes_a_failure_s_place(
    drive: Callable[..., Driver], tmp_path: Path
) -> None:
    driver = drive(1, 2, exports_kv=True)
    driver.run(2)
    (tmp_path / "fails-1").touch()
    os.kill(driver.pids()[0], signal.SIGSTOP)  # in the middle of the step, as far as anybody knows
    driver.go_on()
    wait_until(lambda: not driver.executor.serving)  # nobody is called while the failure is held
    assert driver.executor.result(0) is None
    os.kill(driver.pids()[0], signal.SIGKILL)
    with pytest.raises(StepsLostError, match="homenode-worker-0"):
        driver.executor.result(PATIENCE_S)
    driver.await_serving()
    assert driver.executor.result(0) is None
    driver.run(3)


@pytest.mark.alone
@pytest.mark.parametrize(
    ("stages_ranks", "victim", "moment"),
    [
        ((2, 1), 0, "dies"),
        ((2, 1), 1, "dies"),
        ((1, 2), 1, "dies"),
        pytest.param((2, 1), 0, "stops", marks=pytest.mark.slow),
        pytest.param((1, 2), 0, "stops", marks=pytest.mark.slow),
        ((2, 1), 1, "idle"),
    ],
)
def test_a_lost_worker_is_replaced(
    drive: Callable[..., Driver], tmp_path: Path, stages_ranks: tuple[int, int], victim: int, moment: str
) -> None:
    driver = drive(*stages_ranks, silent_s=SILENT_S if moment == "stops" else PATIENCE_S)
    driver.run(2)
    before = driver.pids()
    if moment == "idle":
        os.kill(before[victim], signal.SIGKILL)
    else:
        (tmp_path / f"{moment}-{victim}").touch()
        driver.go_on()
    with pytest.raises(StepsLostError) as lost:
        while driver.executor.result(PATIENCE_S) is not None:
            pass
    assert f"homenode-worker-{victim}" in lost.value.message and not lost.value.fatal
    driver.await_serving()
    assert driver.executor.result(0) is None, "a loss is told of once"
    after = driver.pids()
    assert [a != b for a, b in zip(before, after, strict=True)] == [n == victim for n in range(2)]
    driver.run(3)
    assert driver.executor.statistics()["restarts"] == 1


def test_a_worker_that_dies_while_it_is_replaced_is_replaced_again(
    drive: Callable[..., Driver], tmp_path: Path
) -> None:
    driver = drive(2, 1)
    driver.run(1)
    (tmp_path / "dies-loading-0").touch()
    os.kill(driver.pids()[0], signal.SIGKILL)
    with pytest.raises(StepsLostError):
        driver.executor.result(PATIENCE_S)
    driver.await_serving()
    driver.run(3)
    assert driver.executor.statistics()["restarts"] == 2


def test_losses_in_quick_succession_are_the_end(drive: Callable[..., Driver], tmp_path: Path) -> None:
    driver = drive(2, 1)
    driver.run(1)
    (tmp_path / "broken-1").touch()
    os.kill(driver.pids()[1], signal.SIGKILL)
    with pytest.raises(StepsLostError) as lost:
        driver.executor.result(PATIENCE_S)
    assert not lost.value.fatal
    with pytest.raises(StepsLostError) as lost:
        driver.executor.result(4 * PATIENCE_S)  # five processes start, one after another
    assert lost.value.fatal and "there is no room for this part" in lost.value.message
    assert not driver.executor.serving


@pytest.mark.parametrize(
    ("sign", "kind", "words"), [("broken-1", CapacityError, "no room"), ("dies-loading-0", PeerError, "was killed")]
)
def test_a_start_that_fails_says_why(
    drive: Callable[..., Driver], tmp_path: Path, sign: str, kind: type[Exception], words: str
) -> None:
    driver = drive(2, 1, start=False)
    (tmp_path / sign).touch()
    with pytest.raises(kind, match=words):
        driver.start()


def test_workers_that_have_read_several_models_do_not_start(drive: Callable[..., Driver], tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("before")
    (tmp_path / "weights-2").write_text("after")
    with pytest.raises(CheckpointError, match=r"model\.safetensors holds other weights"):
        drive(2, 2, start=False).start()


def test_workers_that_have_read_one_model_again_serve(drive: Callable[..., Driver], tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("before")
    driver = drive(2, 1)
    driver.run(2)
    os.kill(driver.pids()[1], signal.SIGKILL)
    with pytest.raises(StepsLostError) as lost:
        driver.executor.result(PATIENCE_S)
    assert not lost.value.fatal
    driver.await_serving()
    driver.run(2)


@pytest.mark.parametrize(("stages", "ranks"), [(2, 1), (1, 2)])
def test_a_worker_that_reads_another_model_ends_the_engine(
    drive: Callable[..., Driver], tmp_path: Path, stages: int, ranks: int
) -> None:
    (tmp_path / "weights").write_text("before")
    driver = drive(stages, ranks)
    driver.run(2)
    (tmp_path / "weights").write_text("after")
    os.kill(driver.pids()[1], signal.SIGKILL)
    with pytest.raises(StepsLostError) as lost:
        driver.executor.result(PATIENCE_S)
    assert not lost.value.fatal
    with pytest.raises(StepsLostError, match=r"model\.safetensors holds other weights") as lost:
        driver.executor.result(PATIENCE_S)
    assert lost.value.fatal and str(tmp_path) in lost.value.message
    assert not driver.executor.serving


@pytest.mark.parametrize(("stages", "ranks"), [(2, 1), (1, 2)])
def test_a_grammar_is_ready_when_all_who_draw_have_it(drive: Callable[..., Driver], stages: int, ranks: int) -> None:
    driver, ready = drive(stages, ranks), SimpleQueue[str]()
    for grammar in ("known", "new"):
        assert driver.executor.prepare_grammar(grammar, lambda grammar=grammar: ready.put(grammar))  # type: ignore[misc]
        assert ready.get(timeout=PATIENCE_S) == grammar
        assert not driver.executor.prepare_grammar(grammar, lambda: ready.put("again"))
    driver.run(3)
    assert ready.empty()


def test_nobody_waits_for_the_grammar_of_a_lost_worker(drive: Callable[..., Driver]) -> None:
    driver, ready = drive(2, 1), SimpleQueue[str]()
    assert driver.executor.prepare_grammar("never", lambda: ready.put("never"))
    driver.run(2)
    assert ready.empty()
    os.kill(driver.pids()[1], signal.SIGKILL)
    assert ready.get(timeout=PATIENCE_S) == "never"
    with pytest.raises(StepsLostError):
        driver.executor.result(PATIENCE_S)
    driver.await_serving()
    assert driver.executor.prepare_grammar("new", lambda: ready.put("new"))
    assert ready.get(timeout=PATIENCE_S) == "new"
