"""What it costs that KV memory is taken when it is used.

    python -m benchmarks.kv_growth MODEL [--pairs 15] [--threads N] [--prompt 1024] [--tokens 256] [--batch 1,8] [--memory 1GiB]
                                 [--json FILE]

Two engines of one process, on the same CPUs, compute in turns (A B B A ...), so that whatever changes on the machine
meanwhile changes for both: one that took all KV memory at its start (--kv-cache-prealloc), and one that has given
back whatever it had before each turn, and so grows in it from nothing. The prefix cache is off. A turn is a prefill
of `--prompt` tokens, and for each batch a decode of `--tokens` tokens after 32. Of both the medians count, and of
each pair of turns the ratio of on demand to prealloc: below 1 is slower. `longest step` is the longest time between
two tokens of a decode in relation to the median of that turn, the first two apart; its median over the turns, and the
worst.

Before each turn so much memory is touched and freed as an engine may take: in a virtual machine whose host takes back
what is free, the first touch of a huge page took 4.3 ms instead of 0.17.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
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

from benchmarks.machine import machine, own_version
from homenode.engine.config import EngineConfig
from homenode.engine.local import LocalEngine
from homenode.engine.location.located import located
from homenode.engine.messages import Output
from homenode.engine.request import Request, SamplingParams
from homenode.units import parse_bytes

_PATIENCE_S = 600.0
_RELEASE_S = 0.2
_SHORT_PROMPT = 32
_WARM_UP = 2  # tokens of a decode that are not steady yet


@dataclass
class Side:
    """An engine, and how many requests it has had."""

    name: str
    engine: LocalEngine
    grows: bool
    requests: int = 0

    def run(self, prompt: int, tokens: int, batch: int) -> list[tuple[float, int]]:
        """So many requests at once. When outputs came, and of which."""
        sink: SimpleQueue[Output] = SimpleQueue()
        params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
        requests = []
        for number in range(batch):
            self.requests += 1
            ids = [1 + (self.requests * 7 + number * 31 + at * 13) % 200 for at in range(prompt)]
            requests.append(Request(id=self.requests, prompt_ids=ids, params=params))
        begin = time.perf_counter()
        self.engine.submit(requests, sink)
        came, left = [], batch
        while left:
            output = sink.get(timeout=_PATIENCE_S)
            if output.error is not None:
                raise RuntimeError(output.error)
            came.append((time.perf_counter() - begin, output.id))
            left -= output.finish_reason is not None
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
class Decode:
    """Of a turn: tokens per second of all requests, and the longest step by the median."""

    tok_s: float
    longest: float


def touch_memory(nbytes: int) -> None:
    """Take so much memory of the machine, and free it."""
    with mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, nbytes, mmap.PAGESIZE):
            memory[at] = 1


def prefill(side: Side, prompt: int) -> float:
    """Tokens per second up to the first token."""
    return prompt / side.run(prompt, 1, 1)[0][0]


def decode(side: Side, tokens: int, batch: int) -> Decode:
    """Of the requests that all decode: from when the last of them began."""
    came = side.run(_SHORT_PROMPT, tokens, batch)
    of_first = [at for at, number in came if number == came[0][1]]
    began = max(min(at for at, number in came if number == one) for one in {number for _, number in came})
    steady = [at for at in of_first if at >= began][_WARM_UP:]
    steps = [b - a for a, b in pairwise(steady)]
    return Decode(batch * len(steps) / sum(steps), max(steps) / statistics.median(steps))


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
    sides = [_side(given, grows=False), _side(given, grows=True)]
    try:
        for side in sides:  # code, scratch memory
            decode(side, 8, max(given.batch))
        turns = [_pair(given, sides, number) for number in range(given.pairs)]
    finally:
        for side in sides:
            side.engine.close()
    found = {"machine": machine(), "version": own_version(), "pairs": given.pairs, **_figures(given, turns)}
    _show(found)
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
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
    config = located(dataclasses.replace(config, model=dataclasses.replace(config.model, path=given.model)))
    return Side("on demand" if grows else "prealloc", LocalEngine(config), grows)


def _pair(given: argparse.Namespace, sides: Sequence[Side], number: int) -> dict[str, dict[str, Any]]:
    """A turn of each, the first one in turns."""
    turn: dict[str, dict[str, Any]] = {}
    for side in sides if number % 2 == 0 else sides[::-1]:
        seen: dict[str, Any] = {}
        side.give_all_back()
        touch_memory(given.memory)
        seen["prefill"] = prefill(side, given.prompt)
        for batch in given.batch:
            side.give_all_back()
            touch_memory(given.memory)
            seen[f"decode {batch}"] = decode(side, given.tokens, batch)
        turn[side.name] = seen
    print(f"pair {number + 1} of {given.pairs}", file=sys.stderr, flush=True)
    return turn


def _figures(given: argparse.Namespace, turns: Sequence[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for work in ("prefill", *(f"decode {batch}" for batch in given.batch)):
        speeds = {name: [_speed(turn[name][work]) for turn in turns] for name in ("prealloc", "on demand")}
        ratios = [b / a for a, b in zip(speeds["prealloc"], speeds["on demand"], strict=True)]
        line: dict[str, Any] = {name: round(statistics.median(values), 2) for name, values in speeds.items()}
        line["ratio"] = {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
        if work != "prefill":
            for name in speeds:
                longest = [turn[name][work].longest for turn in turns]
                line[f"longest step, {name}"] = {"median": statistics.median(longest), "most": max(longest)}
        found[work] = line
    return {"results": found}


def _speed(seen: float | Decode) -> float:
    return seen.tok_s if isinstance(seen, Decode) else seen


def _show(found: dict[str, Any]) -> None:
    for work, line in found["results"].items():
        ratio = line["ratio"]
        print(
            f"{work:12} prealloc {line['prealloc']:9.1f} tok/s, on demand {line['on demand']:9.1f} tok/s, "
            f"ratio {ratio['median']:.3f} ({ratio['least']:.3f} to {ratio['most']:.3f})"
        )
        for name in ("prealloc", "on demand"):
            if (longest := line.get(f"longest step, {name}")) is not None:
                print(
                    f"{'':12} longest step by the median, {name}: {longest['median']:.2f}, at most {longest['most']:.2f}"
                )


if __name__ == "__main__":
    sys.exit(main())
