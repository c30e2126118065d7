"""The simulation: arrivals, the real router, engines. One event after another, in virtual time. Pure, and the same for
the same input."""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from homenode.engine.messages import Output
from homenode.engine.request import Request
from homenode.engine.router.router import RoutedRequest, Router
from homenode.sampling import SamplingParams
from homenode.simulate.engine import TOKEN, SimulatedEngine
from homenode.simulate.workload import Job, Workload

ReportProgress = Callable[[int, int], None]  # requests ended, and in all


@dataclass(slots=True)
class _Asked:
    """A request under way."""

    engine: int
    routed: RoutedRequest | None
    arrival: float
    last: float
    tokens: int = 0


@dataclass
class Outcome:
    """The outcome of a simulation. Times in seconds: `ttft` of each request with a token, `itl` between the tokens of
    one, `latency` of each that was finished.
    """

    requests: int = 0
    finished: int = 0
    refused: int = 0
    prompt_tokens: int = 0  # of all that were finished
    output_tokens: int = 0
    end: float = 0.0
    ttft: array[float] = field(default_factory=lambda: array("d"))
    itl: array[float] = field(default_factory=lambda: array("d"))
    latency: array[float] = field(default_factory=lambda: array("d"))
    reasons: dict[str, int] = field(default_factory=dict)  # of refusals, by their text
    by_engine: list[int] = field(default_factory=list)  # requests given to each


def simulate(
    engines: Sequence[SimulatedEngine],
    blocks: Sequence[int],
    block_size: int,
    vocabulary: int,
    workload: Workload,
    *,
    caching: bool = True,
    report_progress: ReportProgress = lambda done, total: None,
) -> Outcome:
    """Run a workload to its end. `blocks`: KV blocks of each engine."""
    return _Run(engines, blocks, block_size, vocabulary, workload, caching, report_progress).run()


class _Run:
    def __init__(
        self,
        engines: Sequence[SimulatedEngine],
        blocks: Sequence[int],
        block_size: int,
        vocabulary: int,
        workload: Workload,
        caching: bool,
        report_progress: ReportProgress,
    ) -> None:
        self._engines = engines
        self._workload, self._report_progress = workload, report_progress
        self._vocabulary = vocabulary
        self._router = Router(block_size, caching, key=bytes(32)) if len(engines) > 1 else None
        for number, count in enumerate(blocks):
            if self._router:
                self._router.add(number, count)
        self._usage = dict.fromkeys(range(len(engines)), 0.0)
        self._prompts: dict[int, tuple[list[int], int]] = {}
        self._live: dict[int, _Asked] = {}
        self._wakes: list[tuple[float, int]] = []
        self._waiting: list[tuple[float, int, Job]] = []  # what clients ask next
        self._outcome = Outcome(by_engine=[0] * len(engines))

    def run(self) -> Outcome:
        arrivals = self._workload.begin()
        coming = next(arrivals, None)
        while True:
            wake = self._wakes[0][0] if self._wakes else math.inf
            again = self._waiting[0][0] if self._waiting else math.inf
            at = coming.at if coming else math.inf
            if min(wake, again, at) == math.inf:
                return self._outcome
            if at <= min(wake, again) and coming:
                self._arrive(at, coming)
                coming = next(arrivals, None)
            elif again <= wake:
                self._arrive(again, heapq.heappop(self._waiting)[2])
            else:
                self._wake(*heapq.heappop(self._wakes))

    def _arrive(self, now: float, job: Job) -> None:
        number = self._outcome.requests
        self._outcome.requests += 1
        prompt = job.tokens(number, self._vocabulary)
        routed, engine = None, 0
        if self._router:
            routed = self._router.new_request(prompt, "")
            route = self._router.route(routed, self._usage)
            engine = route.number if route else 0
        self._outcome.by_engine[engine] += 1
        self._live[number] = _Asked(engine, routed, now, now)
        params = SamplingParams(max_tokens=job.output, ignore_eos=True, temperature=0.0, seed=0)
        request = Request(id=number, prompt_ids=prompt, params=params, arrival=now)
        self._prompts[number] = (prompt if self._router else [], len(prompt))
        self._take(now, engine, self._engines[engine].submit(now, request))

    def _wake(self, at: float, number: int) -> None:
        engine = self._engines[number]
        if engine.next_time == at:  # else it was told of something meanwhile, and has a wake of its own
            self._take(at, number, engine.advance())

    def _take(self, now: float, number: int, outputs: Iterable[Output]) -> None:
        for output in outputs:
            self._output(now, output)
        if self._router:
            self._usage[number] = self._engines[number].statistics.kv_usage
        following = self._engines[number].next_time
        if following < math.inf:
            heapq.heappush(self._wakes, (following, number))

    def _output(self, now: float, output: Output) -> None:
        asked, outcome = self._live[output.id], self._outcome
        for _ in output.tokens:
            if asked.tokens:
                outcome.itl.append(now - asked.last)
            else:
                outcome.ttft.append(now - asked.arrival)
                if self._router and asked.routed:
                    self._router.began(asked.routed)
            asked.tokens += 1
            asked.last = now
        if output.finish_reason is not None:
            self._end(now, output, asked)

    def _end(self, now: float, output: Output, asked: _Asked) -> None:
        outcome = self._outcome
        del self._live[output.id]
        prompt, length = self._prompts.pop(output.id)
        outcome.end = max(outcome.end, now)
        if output.finish_reason == "error":
            outcome.refused += 1
            reason = output.error_kind or "error"
            outcome.reasons[reason] = outcome.reasons.get(reason, 0) + 1
        else:
            outcome.finished += 1
            outcome.prompt_tokens += length
            outcome.latency.append(now - asked.arrival)
        outcome.output_tokens += asked.tokens
        if self._router and asked.routed:
            self._router.ended(
                asked.routed, [*prompt, *[TOKEN] * asked.tokens] if output.finish_reason != "error" else None
            )
        self._report_progress(outcome.finished + outcome.refused, len(self._workload.jobs))
        if (job := self._workload.after(now)) is not None:
            heapq.heappush(self._waiting, (now, outcome.requests + len(self._waiting), job))
