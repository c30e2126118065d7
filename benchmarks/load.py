"""How long loading takes beside reading the same bytes: `python -m benchmarks.load MODEL... --folder DIR --out FILE`.

Four things in turns, all from the page cache, in one process on the same threads: reading the packed file and doing
nothing with it, loading the model from it, and the same two of the model's own file. Reading is that of each thread's
half in calls of 256 KiB into new memory on huge pages, as loading has to take it too. Loading is `load_model` alone:
the file is open and its header understood before.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from threading import Thread

import click

from homenode.compute.native import NativeBackend
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.weights.load import load_model

_AT_ONCE = 256 << 10


def read_bytes(path: Path, cpus: list[int]) -> float:
    """Seconds in which a thread on each CPU reads its part of the file into new memory."""
    size = path.stat().st_size
    fd = os.open(path, os.O_RDONLY)
    begin = time.perf_counter()
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        with memoryview(memory) as view:
            bounds = [size * i // len(cpus) >> 21 << 21 for i in range(len(cpus))] + [size]
            threads = [
                Thread(target=_read, args=(fd, view, *part)) for part in zip(cpus, bounds, bounds[1:], strict=False)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        seconds = time.perf_counter() - begin
    os.close(fd)
    return seconds


def _read(fd: int, memory: memoryview, cpu: int, begin: int, end: int) -> None:
    os.sched_setaffinity(0, {cpu})
    while begin < end:
        begin += os.preadv(fd, [memory[begin : min(begin + _AT_ONCE, end)]], begin)


def load(path: Path, cpus: list[int], folder: Path | None, quantize: str | None) -> float:
    """Seconds of `load_model`; from a packed file in `folder`, which must be there and right, where one is given."""
    checkpoint, backend = open_checkpoint(path), NativeBackend(cpus)
    begin = time.perf_counter()
    model = load_model(checkpoint, backend, quantize=quantize, packed_cache=folder)
    seconds = time.perf_counter() - begin
    if folder and model.notes:
        raise click.ClickException(f"the packed file was not used: {model.notes}")
    return seconds


def measure(path: Path, folder: Path, cpus: list[int], quantize: str | None, turns: int) -> dict[str, float]:
    """Best and median of each in milliseconds, and how much longer loading takes than reading, of the bests."""
    load_model(open_checkpoint(path), NativeBackend(cpus), quantize=quantize, packed_cache=folder)
    packed = max(folder.glob(f"{path.stem}.*.packed"), key=lambda file: file.stat().st_atime_ns)
    what: dict[str, Callable[[], float]] = {
        "read_packed": lambda: read_bytes(packed, cpus),
        "load_packed": lambda: load(path, cpus, folder, quantize),
        "read_model": lambda: read_bytes(path, cpus),
        "load_model": lambda: load(path, cpus, None, quantize),
    }
    seen: dict[str, list[float]] = {name: [] for name in what}
    for turn in range(turns + 1):
        for name, run in what.items():
            seconds = run()
            if turn:  # the first one fills caches and takes new memory from the host
                seen[name].append(seconds)
    found = {
        f"{name}_{kind}_ms": round(1e3 * pick(times), 2)
        for name, times in seen.items()
        for kind, pick in (("best", min), ("median", median))
    }
    ratios = {f"{kind}_ratio": min(seen[f"load_{kind}"]) / min(seen[f"read_{kind}"]) for kind in ("packed", "model")}
    sizes = {"packed_bytes": packed.stat().st_size, "model_bytes": path.stat().st_size}
    return {**sizes, **found, **{name: round(ratio, 2) for name, ratio in ratios.items()}}


@click.command()
@click.argument("models", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--folder", required=True, type=click.Path(file_okay=False, path_type=Path), help="Where packed files are kept."
)
@click.option("--cpus", default="0,1", show_default=True, help="The threads' CPUs.")
@click.option("--quantize", type=click.Choice(["q8_0", "q4_0"]), help="Quantise float matrices while loading.")
@click.option("--turns", type=click.IntRange(1), default=5, show_default=True)
def main(models: tuple[Path, ...], folder: Path, cpus: str, quantize: str | None, turns: int) -> None:
    """Print one line of JSON for each model."""
    for path in models:
        found = measure(path, folder, [int(cpu) for cpu in cpus.split(",")], quantize, turns)
        click.echo(json.dumps({"model": path.name, "quantize": quantize, **found}))


if __name__ == "__main__":
    main()
