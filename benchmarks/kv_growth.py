"""What it costs that KV memory is taken when it is used.

    python -m benchmarks.kv_growth MODEL [--pairs 15] [--threads N] [--prompt 1024] [--tokens 256] [--batch 1,8]
        [--memory 1GiB]
                                 [--json FILE]

Two engines of one process, on the same CPUs, compute in turns (A B B A ...), so that whatever changes on the machine
meanwhile changes for both: one that took all KV memory at its start (--kv-cache-prealloc), and one that has given
back whatever it had before each turn, and so grows in it from nothing. The prefix cache is off. A turn is a prefill
of `--prompt` tokens, and for each batch a decode of `--tokens` tokens after 32. Of both the medians count, and of
each pair of turns the ratio of on demand to prealloc: below 1 is slower. `longest step` is the longest time between
two tokens of a decode in relation to the median of that turn, the first two apart; its median over the turns, and the
worst.

A virtual machine's host may have taken back what is free, and then the first touch of a huge page takes 4.3 ms instead
of 0.17. So that this cost of the host is not counted for growth, memory that this program has touched is freed just
before each growth (`WarmMemory`); the freeing is counted, as it happens within the step.
"""

from __future__ import annotations

import argparse
import dataclasses
import mmap
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from homenode.bench.runner import Interval, keep_record
from homenode.compute.native.kv_pages import KvPages
from homenode.engine.api.local import LocalEngine
from homenode.engine.config import EngineConfig
from homenode.engine.messages import Output
from homenode.engine.model_path.locate import locate_model
from homenode.engine.request import Request
from homenode.sampling import SamplingParams
from homenode.units import parse_bytes

_PATIENCE_S = 600.0
_RELEASE_S = 0.2
_SHORT_PROMPT = 32
_WARM_UP = 2  # tokens of a decode that are not steady yet


class WarmMemory:
    """Huge pages that were touched, and are freed piece by piece for others to take."""

    _SIZE = 512 << 20  # bytes; a turn grows by less
    _PIECE = 4 << 20  # bytes; a growth is by about one huge page, and another is taken where it crosses a border

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, self._SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._left = 0  # bytes that are touched and not freed

    def refill(self) -> None:
        """Touch all of it."""
        for at in range(self._left, self._SIZE, mmap.PAGESIZE):
            self._memory[at] = 1
        self._left = self._SIZE

    def free_some(self) -> None:
        """Give one piece to the kernel, while there is one."""
        if self._left >= self._PIECE:
            self._left -= self._PIECE
            self._memory.madvise(mmap.MADV_DONTNEED, self._left, self._PIECE)


class TakeLog:
    """When KV pages were taken in this process: the begin and the seconds of each time. Warm memory is freed before."""

    def __init__(self) -> None:
        self.memory = WarmMemory()
        self.taken: list[tuple[float, float]] = []
        original = KvPages.take

        def take(pages: KvPages, first: int, past: int) -> list[tuple[int, int]]:
            begin = time.perf_counter()
            self.memory.free_some()
            result = original(pages, first, past)
            self.taken.append((begin, time.perf_counter() - begin))
            return result

        setattr(KvPages, "take", take)  # noqa: B010  (this method is replaced in this process only)

    def seconds_between(self, begin: float, end: float) -> float:
        """Of all that began in this time."""
        return sum(seconds for at, seconds in self.taken if begin <= at < end)


@dataclass
class Side:
    """An engine, and how many requests it has had. `cpu_s`: CPU seconds of the process during the latest `run`."""

    name: str
    engine: LocalEngine
    grows: bool
    requests: int = 0
    cpu_s: float = 0.0

    def run(self, prompt: int, tokens: int, batch: int) -> list[tuple[float, int]]:
        """So many requests at once. When outputs came by the clock of `perf_counter`, and of which request."""
        sink: SimpleQueue[Output] = SimpleQueue()
        params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
        requests = []
        for number in range(batch):
            self.requests += 1
            ids = [1 + (self.requests * 7 + number * 31 + at * 13) % 200 for at in range(prompt)]
            requests.append(Request(id=self.requests, prompt_ids=ids, params=params))
        cpu = time.process_time()
        self.engine.submit(requests, sink)
        came, left = [], batch
        while left:
            output = sink.get(timeout=_PATIENCE_S)
            if output.error is not None:
                raise RuntimeError(output.error)
            came.append((time.perf_counter(), output.id))
            left -= output.finish_reason is not None
        self.cpu_s = time.process_time() - cpu
        return came

    def give_all_back(self) -> None:
        """Wait until nothing is present, where memory grows."""
        deadline = time.monotonic() + _PATIENCE_S
        while self.grows and self.present > 0:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.present} bytes of KV memory do not go back")
            time.sleep(0.05)

    @property
    def present(self) -> int:
        """Bytes of its KV memory."""
        pages = self.engine.statistics.compute.get("kv_pages")
        return int(pages["present"]) if isinstance(pages, dict) else 0


@dataclass(frozen=True)
class Turn:
    """Tokens per second of all requests, and per CPU second. Of a decode: its longest step, and the longest time that
    KV pages were taken within one step, both in relation to its median step."""

    tok_s: float
    tok_cpu_s: float
    longest: float = 0.0
    growth: float = 0.0


def prefill(side: Side, prompt: int) -> Turn:
    """Up to the first token."""
    begin = time.perf_counter()
    end = side.run(prompt, 1, 1)[0][0]
    return Turn(prompt / (end - begin), prompt / side.cpu_s)


def decode(side: Side, tokens: int, batch: int, log: TakeLog) -> Turn:
    """Of the requests that all decode: from when the last of them began. CPU time is of the whole turn."""
    came = side.run(_SHORT_PROMPT, tokens, batch)
    of_first = [at for at, number in came if number == came[0][1]]
    began = max(min(at for at, number in came if number == one) for one in {number for _, number in came})
    steady = [at for at in of_first if at >= began][_WARM_UP:]
    steps = [b - a for a, b in pairwise(steady)]
    median = statistics.median(steps)
    growth = max(log.seconds_between(a, b) for a, b in pairwise(steady)) if side.grows else 0.0
    return Turn(batch * len(steps) / sum(steps), batch * tokens / side.cpu_s, max(steps) / median, growth / median)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the pairs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kv_growth", description=str(__doc__).split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--batch", type=lambda text: [int(each) for each in text.split(",")], default=[1, 8])
    parser.add_argument("--memory", type=parse_bytes, default=1 << 30, help="of each engine for KV")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    log = TakeLog()
    sides = [_side(given, grows=False), _side(given, grows=True)]
    try:
        for side in sides:  # code, scratch memory
            decode(side, 8, max(given.batch), log)
        turns = [_pair(given, sides, number, log) for number in range(given.pairs)]
    finally:
        for side in sides:
            side.engine.close()
    found = {"pairs": given.pairs, **_figures(given, turns)}
    _show(found)
    keep_record(given.json, **found)
    return 0


def _side(given: argparse.Namespace, *, grows: bool) -> Side:
    settings: dict[str, Any] = {
        "disable_log_stats": True,
        "threads": given.threads,
        "max_num_seqs": max(given.batch),
        "max_model_len": max(_SHORT_PROMPT + given.tokens, given.prompt + 1) + 64,
        "enable_prefix_caching": False,
        "kv_cache_release": _RELEASE_S,
        "kv_cache_prealloc": not grows,
        "kv_cache_memory": given.memory,
    }
    config = EngineConfig.of(None, settings)
    config = locate_model(dataclasses.replace(config, model=dataclasses.replace(config.model, path=given.model)))
    return Side("on demand" if grows else "prealloc", LocalEngine(config), grows)


def _pair(given: argparse.Namespace, sides: Sequence[Side], number: int, log: TakeLog) -> dict[str, dict[str, Turn]]:
    """A turn of each, the first one in turns."""
    turn: dict[str, dict[str, Turn]] = {}
    for side in sides if number % 2 == 0 else sides[::-1]:
        seen: dict[str, Turn] = {}
        side.give_all_back()
        log.memory.refill()
        seen["prefill"] = prefill(side, given.prompt)
        for batch in given.batch:
            side.give_all_back()
            log.memory.refill()
            seen[f"decode {batch}"] = decode(side, given.tokens, batch, log)
        turn[side.name] = seen
    print(f"pair {number + 1} of {given.pairs}", file=sys.stderr, flush=True)
    return turn


def _figures(given: argparse.Namespace, turns: Sequence[dict[str, dict[str, Turn]]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for work in ("prefill", *(f"decode {batch}" for batch in given.batch)):
        before, after = ([turn[name][work] for turn in turns] for name in ("prealloc", "on demand"))
        line: dict[str, Any] = {
            "prealloc": round(statistics.median(each.tok_s for each in before), 2),
            "on demand": round(statistics.median(each.tok_s for each in after), 2),
            "ratio": _spread([b.tok_s / a.tok_s for a, b in zip(before, after, strict=True)]),
            "ratio by CPU time": _spread([b.tok_cpu_s / a.tok_cpu_s for a, b in zip(before, after, strict=True)]),
        }
        if work != "prefill":
            line["longest step, prealloc"] = _spread([each.longest for each in before])
            line["longest step, on demand"] = _spread([each.longest for each in after])
            line["growth in a step"] = _spread([each.growth for each in after])
        found[work] = line
    return {"results": found}


def _spread(values: Sequence[float]) -> dict[str, float]:
    """The median with its interval, the least and the most."""
    return {**Interval.of(values).to_json(), "least": min(values), "most": max(values)}


def _show(found: dict[str, Any]) -> None:
    for work, line in found["results"].items():
        print(f"{work:12} prealloc {line['prealloc']:9.1f} tok/s, on demand {line['on demand']:9.1f} tok/s")
        for name in (
            "ratio",
            "ratio by CPU time",
            "longest step, prealloc",
            "longest step, on demand",
            "growth in a step",
        ):
            if (spread := line.get(name)) is not None:
                print(
                    f"{'':12} {name}: {spread['median']:.3f}, 95 % interval {spread['low']:.3f} to "
                    f"{spread['high']:.3f}, "
                    f"least {spread['least']:.3f}, most {spread['most']:.3f}"
                )


if __name__ == "__main__":
    sys.exit(main())
