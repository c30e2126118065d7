"""The cost of a step beside computing: the whole engine around a native program that takes a known time.

Scheduler, arrays, sampler, frames and detokenising are the engine's own; only the model is replaced, by multiplications
in registers on all threads for as long as a step is to take, and logits of a vocabulary of the usual size to draw from.
The other end of the frames is a process of its own, as it is in serving.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from homenode.compute.native import NativeBackend
from homenode.compute.ops import Logits, Ops, Program, SampledRows, SamplingArrays, StepArrays, StepLimits, Tensor
from homenode.engine.executor.inline import InlineExecutor
from homenode.engine.messages import Output, Outputs, Submit, ToFront
from homenode.engine.request import Request
from homenode.engine.runtime.loop import EngineCore
from homenode.engine.scheduler.scheduler import Scheduler
from homenode.engine.scheduler_config import KvConfig, SchedulerConfig
from homenode.engine.step import WorkerLimits
from homenode.engine.worker.runner import Runner
from homenode.errors import PeerError
from homenode.host.socket_pair import open_socket_pair
from homenode.net.message_frames import FrameSocket
from homenode.sampling import SamplingParams

_COLUMNS = 64  # of the stand-in's activations
_BLOCK = 64
_PROMPT = 32
_FRACTION_LEFT_OUT = 0.2  # of the steps, at the beginning: prompts, and memory touched for the first time
_CALIBRATION = 100_000  # rounds
_PATIENCE_S = 600.0  # for one measurement


@dataclass(frozen=True)
class StepCost:
    """Medians over the steps, in microseconds. `python_us`: neither in the program nor in sampling, so nothing
    computes."""

    sequences: int
    steps: int
    program_us: float
    sampling_us: float
    python_us: float
    python_p95_us: float
    share: float  # python_us of a step's time
    loop_cpu_us: float  # CPU time of the engine's loop, most of it while a step computes
    front_cpu_us: float  # CPU time of the process that takes the frames and makes text of them


@dataclass
class _Times:
    """Times of one step, in seconds of perf_counter: the program's beginning and end, then sampling's."""

    begin: float
    computed: float
    sampling: float = 0.0
    sampled: float = 0.0


class _TimedProgram:
    """A small native program, then multiplications until a step is over."""

    def __init__(self, program: Program, work: Callable[[], object], times: list[_Times]) -> None:
        self._program, self._work, self._times = program, work, times

    def run(self, arrays: StepArrays) -> Logits:
        """Run the program, then the work, and note when each ended. Returns the program's logits."""
        begin = time.perf_counter()
        logits = self._program.run(arrays)
        self._work()
        self._times.append(_Times(begin, time.perf_counter()))
        return logits

    def expert_usage(self) -> npt.NDArray[np.uint64]:
        """Return how often each expert was used, as the program counts it."""
        return self._program.expert_usage()


class _TimedSampling:
    """The backend as a runner sees it, with a clock around sampling."""

    def __init__(self, backend: NativeBackend, times: list[_Times]) -> None:
        self._backend, self._times = backend, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def sample(self, logits: Logits, how: SamplingArrays, num_logprobs: int = -1) -> SampledRows:
        """Sample from `logits` by the backend and note when that began and ended. Returns the backend's rows."""
        begin = time.perf_counter()
        drawn = self._backend.sample(logits, how, num_logprobs)
        last = self._times[-1]
        last.sampling, last.sampled = begin, time.perf_counter()
        return drawn


def measure_steps(
    backend: NativeBackend,
    sequences: int,
    steps: int,
    *,
    step_s: float = 0.02,
    vocab_size: int = 151_936,
    temperature: float = 0.0,
) -> StepCost:
    """Run `sequences` requests of `steps` tokens each, all at once. `temperature` above 0 samples with top-k 40 and
    top-p 0.95."""
    times: list[_Times] = []
    loop_cpu: list[float] = []
    runner = _runner(backend, sequences, steps, step_s, vocab_size, times)
    executor = InlineExecutor(runner, _limits(sequences, steps, vocab_size), cpus=backend.statistics()["cpus"][:1])
    ours, theirs = open_socket_pair()
    with theirs:
        command = [
            sys.executable,
            "-P",
            "-m",
            "homenode.bench.engine.step_front",
            str(theirs.fileno()),
            str(vocab_size),
        ]
        front = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdout=subprocess.PIPE, text=True)
    with ours:
        channel = FrameSocket(ours)
        try:
            if channel.receive() is None:  # otherwise its tokenizer is ready
                raise PeerError("the process that takes the frames could not start; its own words are above")
            _run(executor, channel.send, sequences, steps, temperature, loop_cpu)
        finally:
            executor.close()
            ours.close()
            told = front.communicate()[0]
    return _cost(sequences, times, loop_cpu[0], float(told))


def _runner(
    backend: NativeBackend, sequences: int, steps: int, step_s: float, vocab_size: int, times: list[_Times]
) -> Runner:
    limits = StepLimits(sequences * _PROMPT, sequences, sequences, -(-(_PROMPT + steps) // _BLOCK))
    table = backend.weight_from_array(
        np.random.default_rng(0).standard_normal((vocab_size, _COLUMNS), np.float32), "Q8_0"
    )

    def forward(ops: Ops) -> Tensor:
        return ops.linear(ops.select(ops.embedding(table)), [table])

    work = _work(backend, step_s)
    program = _TimedProgram(backend.compile(forward, limits), work, times)
    return Runner(program, _TimedSampling(backend, times), _BLOCK)


def _work(backend: NativeBackend, seconds: float) -> Callable[[], object]:
    """Multiplications on all threads in one native call that takes about this long; none for no time."""
    if seconds <= 0:
        return lambda: None
    meter = backend.meter(1)
    fastest = min(meter.occupy(_CALIBRATION) for _ in range(20))
    rounds = max(1, round(_CALIBRATION * seconds / fastest))
    return lambda: meter.occupy(rounds)


def _limits(sequences: int, steps: int, vocab_size: int) -> WorkerLimits:
    length = _PROMPT + steps
    return WorkerLimits(
        num_blocks=2 * sequences * -(-length // _BLOCK) + 16,
        block_size=_BLOCK,
        max_model_len=length,
        vocab_size=vocab_size,
        max_sampled_rows=sequences,
    )


def _run(
    executor: InlineExecutor,
    send: Callable[[ToFront], None],
    sequences: int,
    steps: int,
    temperature: float,
    loop_cpu: list[float],
) -> None:
    """Start the loop on a thread, hand in the requests, wait for their ends."""
    config = SchedulerConfig(max_num_batched_tokens=sequences * _PROMPT, max_num_seqs=sequences, step_time=0)
    scheduler = Scheduler(config, KvConfig(), executor.limits(), (), lookahead=1)
    left: SimpleQueue[int] = SimpleQueue()

    def give(message: ToFront) -> None:
        send(message)
        if isinstance(message, Outputs):
            for output in message.outputs:
                _note_end(output, left)

    core = EngineCore(scheduler, executor, give, log_stats=False)

    def loop() -> None:
        begin = time.thread_time()
        core.run()
        loop_cpu.append(time.thread_time() - begin)

    thread = threading.Thread(target=loop, name="homenode-engine")
    draw = random.Random(0)
    params = SamplingParams(
        max_tokens=steps,
        temperature=temperature,
        ignore_eos=True,
        top_k=40 if temperature else 0,
        top_p=0.95 if temperature else 1.0,
    )
    core.post(
        Submit(
            [
                Request(id=i, prompt_ids=[draw.randrange(1000) for _ in range(_PROMPT)], params=params)
                for i in range(sequences)
            ]
        )
    )
    thread.start()
    for _ in range(sequences):
        left.get(timeout=_PATIENCE_S)
    core.stop()
    thread.join()


def _note_end(output: Output, left: SimpleQueue[int]) -> None:
    if output.finish_reason is not None:
        left.put(output.id)


def _cost(sequences: int, times: list[_Times], loop_cpu: float, front_cpu: float) -> StepCost:
    counted = times[int(len(times) * _FRACTION_LEFT_OUT) :]
    begins = np.array([t.begin for t in counted])
    program = np.array([t.computed - t.begin for t in counted])
    sampling = np.array([t.sampled - t.sampling for t in counted])
    python = np.diff(begins) - (program + sampling)[:-1]
    whole = float(np.median(np.diff(begins)))
    return StepCost(
        sequences=sequences,
        steps=len(counted),
        program_us=1e6 * float(np.median(program)),
        sampling_us=1e6 * float(np.median(sampling)),
        python_us=1e6 * float(np.median(python)),
        python_p95_us=1e6 * float(np.percentile(python, 95)),
        share=float(np.median(python)) / whole,
        loop_cpu_us=1e6 * loop_cpu / len(times),
        front_cpu_us=1e6 * front_cpu / len(times),
    )
