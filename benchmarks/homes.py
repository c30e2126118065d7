"""What homes of memory cost, on a machine whose nodes are one: decoding with and without them, and loading one copy and
several.

    python -m benchmarks.homes MODEL.gguf decode [--rounds 24]
    python -m benchmarks.homes MODEL.gguf load [--rounds 3]

Everything is measured in turns, round by round, and each figure is a median, of loading with the best beside it: on a
virtual machine memory may have to come from the host first; a ratio is the median of the rounds' ratios. `decode`:
`off` knows of no homes, `one home` is what serves on one node, and with `a home for each thread` the whole mechanism
works though there is nothing to gain. `load`: reading alone is all bytes of the file read by as many threads as
compute, and dropped; kept, they come to fresh memory, once or several times, without any packing; each way once with
the file in the page cache and once without.
"""

from __future__ import annotations

import argparse
import mmap
import os
import re
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from homenode.compute.native import NativeBackend
from homenode.compute.ops import StepArrays, StepLimits
from homenode.compute.thread_memory import ThreadMemory
from homenode.engine.memory.sizing import choose_cpus
from homenode.host.discovery.read import read_host
from homenode.host.topology.source import LiveSource
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.weights.load import load_model
from homenode.numa_policy import NumaPolicy

_BLOCK, _STEPS, _LOADS, _READ = 64, 8, 3, 1 << 20


def backend(cpus: tuple[int, ...], homes: str) -> NativeBackend:
    """`homes`: none, one, or own (a home for each thread)."""
    if homes == "none":
        return NativeBackend(cpus, groups=[(0,)] * len(cpus))
    own = tuple(range(len(cpus))) if homes == "own" else (0,) * len(cpus)
    return NativeBackend(
        cpus, groups=[(home,) for home in own], memory=ThreadMemory(own, (0,) * (max(own) + 1), bound=False)
    )


def decoder(path: Path, on: NativeBackend) -> Callable[[], object]:
    """Decodes a sequence from an empty context; the same tokens each time."""
    model = load_model(open_checkpoint(path), on)
    program = on.compile(model.forward(on.kv_cache(model.kv_geometry(_BLOCK), 1)), StepLimits(1, 1, 1, 1))
    table, none = np.zeros((1, 1), np.int32), np.zeros(1, np.int32)

    def run() -> None:
        for at in range(_STEPS):
            here = np.array([at], np.int32)
            program.run(StepArrays(here + 100, here, np.array([0, 1], np.int32), here + 1, table, none))

    return run


def seconds(act: Callable[[], object]) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def decode(path: Path, rounds: int) -> None:
    """Each load gets other pages of the machine's memory, which alone makes some per cent; hence several, each way the
    first of them in turn."""
    cpus = choose_cpus(None, read_host(LiveSource(), accelerators=False))
    ways = {"off": "none", "one home": "one", "a home for each thread": "own"}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for first in range(_LOADS):
        order = [*ways][first % len(ways) :] + [*ways][: first % len(ways)]
        made = {name: decoder(path, backend(cpus, ways[name])) for name in order}
        for run in made.values():
            run()
        for turn in range(rounds):
            for name in order if turn % 2 else reversed(order):
                taken[name].append(seconds(made[name]))
    for name, times in taken.items():
        ratios = sorted(off / own for off, own in zip(taken["off"], times, strict=True))
        middle = f"{ratios[len(ratios) // 4]:.3f} to {ratios[-len(ratios) // 4]:.3f}"
        print(
            f"{name}: {_STEPS / statistics.median(times):.2f} tok/s, {statistics.median(ratios):.3f} of off (the "
            f"middle half {middle})"
        )


def read_all(path: Path, threads: int) -> None:
    """Every byte, by threads that each read a run of the file."""
    size = path.stat().st_size
    file = os.open(path, os.O_RDONLY)

    def part(number: int) -> None:
        at, end, into = size * number // threads, size * (number + 1) // threads, bytearray(_READ)
        while at < end:
            at += os.preadv(file, [memoryview(into)[: min(_READ, end - at)]], at)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(part, range(threads)))
    os.close(file)


def keep_all(path: Path, threads: int, copies: int) -> None:
    """Every byte, read straight to fresh huge pages, and from there to those of further copies: what disk and memory
    cost without any packing."""
    size = path.stat().st_size
    file = os.open(path, os.O_RDONLY)
    maps = [mmap.mmap(-1, size) for _ in range(copies)]
    for one in maps:
        one.madvise(mmap.MADV_HUGEPAGE)
    kept = [np.frombuffer(one, np.uint8) for one in maps]
    first = memoryview(maps[0])

    def part(number: int) -> None:
        at, end = size * number // threads, size * (number + 1) // threads
        while at < end:
            count = os.preadv(file, [first[at : min(at + _READ, end)]], at)
            for copy in kept[1:]:
                np.copyto(copy[at : at + count], kept[0][at : at + count])
            at += count

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(part, range(threads)))
    os.close(file)


def forget(path: Path) -> None:
    """Have the page cache drop the file."""
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def bytes_read() -> int:
    """By this process so far (proc_pid_io(5), rchar)."""
    found = re.search(r"^rchar: (\d+)$", Path("/proc/self/io").read_text(encoding="ascii"), re.MULTILINE)
    return int(found[1]) if found else 0


def load_once(path: Path, cpus: tuple[int, ...], policy: NumaPolicy) -> None:
    load_model(open_checkpoint(path), backend(cpus, "own"), matrix_policy_of=lambda name: policy)


def load(path: Path, rounds: int) -> None:
    cpus = choose_cpus(None, read_host(LiveSource(), accelerators=False))
    ways: Mapping[str, Callable[[], object]] = {
        "reading alone": lambda: read_all(path, len(cpus)),
        "bytes kept once": lambda: keep_all(path, len(cpus), 1),
        f"bytes kept {len(cpus)} times": lambda: keep_all(path, len(cpus), len(cpus)),
        "one copy": lambda: load_once(path, cpus, NumaPolicy.SHARD),
        f"{len(cpus)} copies": lambda: load_once(path, cpus, NumaPolicy.MIRROR),
    }
    taken: dict[tuple[str, str], list[float]] = {}
    counted: dict[str, int] = {}
    for _ in range(rounds):
        for cached in ("not cached", "cached"):
            for name, act in ways.items():
                if cached == "not cached":
                    forget(path)
                before = bytes_read()
                taken.setdefault((name, cached), []).append(seconds(act))
                counted[name] = bytes_read() - before
    size = path.stat().st_size
    print(f"the file: {size / 1e6:.1f} MB, {len(cpus)} threads")
    for (name, cached), times in sorted(taken.items(), key=lambda item: item[0][1]):
        middle = statistics.median(times)
        print(
            f"{name}, {cached}: {middle:.2f} s (best {min(times):.2f}), {size / middle / 1e9:.2f} GB/s of the file, "
            f"{counted[name] / 1e6:.1f} MB read"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("what", choices=("decode", "load"))
    parser.add_argument("--rounds", type=int)
    given = parser.parse_args()
    if given.what == "decode":
        decode(given.model, given.rounds or 24)
    else:
        load(given.model, given.rounds or 3)


if __name__ == "__main__":
    main()
