"""First tokens through the proxy while a server is full, dead, frozen or slow:
`python -m benchmarks.first_tokens [MODEL] [--situation NAME]... --out FILE`.

One prompt after another, each new to all servers, a thread for each: first while all is well, then after something has
happened to a server. What is full is filled again while it is measured. A slow server runs a tenth of the time.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import signal
import statistics
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import click

from benchmarks.contender import Command
from benchmarks.servers import Server, free_port, running
from homenode.bench.runner import keep_record
from homenode.bench.serving.clients import ClientLoad, run_load
from homenode.host.bind.base.threads import descendants

_BUFFER = "600KiB"  # room for one prompt of the built-in model
_FILLED_EVERY_S = 10.0
_MOST_FILLED = 8  # hand-overs
_SLOW_S = (0.02, 0.18)  # it runs, then stands still
_PULL = ("--pd-pull-mode",)
_DELAY = ("--pd-pull-mode", "--pd-delay-pull")


class Side(NamedTuple):
    """A running server."""

    port: int
    pid: int


class Sides(NamedTuple):
    """All of a situation."""

    senders: list[Side]
    receivers: list[Side]
    proxy: Side


Disturbance = Callable[[Sides], AbstractContextManager[None]]


@dataclass(frozen=True)
class Situation:
    """`small`: the role whose buffer holds one prompt. `count`: of senders and receivers."""

    disturb: Disturbance
    flags: tuple[str, ...] = _PULL
    small: str = ""
    count: tuple[int, int] = (1, 1)


def _post(port: int, body: dict[str, object]) -> None:
    data = json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", data, {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=60).close()


@contextmanager
def _repeated(act: Callable[[], None], every_s: float = 0.0) -> Iterator[None]:
    """`act` once, and then again and again in a thread until the end. Raises what it raised there, at the end."""
    over = threading.Event()
    failures: list[Exception] = []

    def repeat() -> None:
        try:
            while not over.wait(every_s):
                act()
        except Exception as error:  # raised behind `join`, as a thread's own is lost
            failures.append(error)

    act()
    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if failures:
        raise failures[0]


def _full(sides: Sides) -> AbstractContextManager[None]:
    """Hand-overs that nobody claims, until one is refused."""
    sender, receiver = sides.senders[0], sides.receivers[0]
    with urllib.request.urlopen(f"http://127.0.0.1:{receiver.port}/kv_transfer", timeout=60) as answer:
        peer = json.load(answer)
    draw = random.Random(0)

    def fill() -> None:
        for _ in range(_MOST_FILLED):
            params = {"do_remote_decode": True, "ticket": f"lost-{draw.getrandbits(60)}", "peer": peer}
            prompt = [draw.randrange(100, 2000) for _ in range(130)]
            try:
                _post(sender.port, {"prompt": prompt, "max_tokens": 1, "kv_transfer_params": params})
            except urllib.error.HTTPError:
                return

    return _repeated(fill, _FILLED_EVERY_S)


def _signalled(pid: int, number: int) -> None:
    for each in (pid, *descendants(pid)):
        with suppress(ProcessLookupError):
            os.kill(each, number)


def _dead(side: Callable[[Sides], Side]) -> Disturbance:
    def kill(sides: Sides) -> AbstractContextManager[None]:
        _signalled(side(sides).pid, signal.SIGKILL)
        return nullcontext()

    return kill


def _slow(side: Callable[[Sides], Side]) -> Disturbance:
    @contextmanager
    def slow(sides: Sides) -> Iterator[None]:
        pid, (runs, stands) = side(sides).pid, _SLOW_S

        def turn() -> None:
            _signalled(pid, signal.SIGSTOP)
            time.sleep(stands)
            _signalled(pid, signal.SIGCONT)
            time.sleep(runs)

        with _repeated(turn):
            yield

    return slow


def _frozen(side: Callable[[Sides], Side]) -> Disturbance:
    @contextmanager
    def freeze(sides: Sides) -> Iterator[None]:
        _signalled(side(sides).pid, signal.SIGSTOP)
        try:
            yield
        finally:
            _signalled(side(sides).pid, signal.SIGCONT)

    return freeze


def _sender(sides: Sides) -> Side:
    return sides.senders[0]


def _receiver(sides: Sides) -> Side:
    return sides.receivers[0]


SITUATIONS = {
    "push over shm, receiver full": Situation(_full, (), "receiver"),
    "push over tcp, receiver full": Situation(_full, ("--transfer-channel", "tcp"), "receiver"),
    "pull-eager, receiver full": Situation(_full, _PULL, "receiver"),
    "pull-delay, sender full": Situation(_full, _DELAY, "sender"),
    "the only sender dead": Situation(_dead(_sender)),
    "one of two senders dead": Situation(_dead(_sender), count=(2, 1)),
    "one of two receivers dead": Situation(_dead(_receiver), count=(1, 2)),
    "one of two senders frozen": Situation(_frozen(_sender), count=(2, 1)),
    "one of two receivers frozen": Situation(_frozen(_receiver), count=(1, 2)),
    "one of two senders slow": Situation(_slow(_sender), count=(2, 1)),
    "one of two receivers slow": Situation(_slow(_receiver), count=(1, 2)),
}


@contextmanager
def _all_running(model: str, situation: Situation) -> Iterator[Sides]:
    with ExitStack() as stack:

        def start(verb: str, *words: str) -> Side:
            port = free_port()
            argv = (sys.executable, "-m", "homenode.cli.main", verb, *words, "--port", str(port))
            return Side(port, stack.enter_context(running(Server(verb, "", Command(argv), port))))

        def serve(role: str) -> Side:
            size = ("--pd-buffer-size", _BUFFER if role == situation.small else "64MiB")
            common = (model, "--threads", "1", "--kv-cache-memory", "64MiB")
            return start("serve", *common, "--pd-role", role, *situation.flags, *size)

        senders, receivers = (
            [serve(role) for _ in range(count)]
            for role, count in zip(("sender", "receiver"), situation.count, strict=True)
        )
        urls = [[f"http://127.0.0.1:{side.port}" for side in sides] for sides in (senders, receivers)]
        yield Sides(senders, receivers, start("proxy", "--prefill", *urls[0], "--decode", *urls[1]))


def _first_tokens(port: int, count: int, seed: int, prompt_tokens: int) -> list[float]:
    """Seconds to the first token of so many prompts, one after another."""
    load = ClientLoad(1, count, prompt_tokens, 4, vocab_size=2000, seed=seed)
    exchanges = asyncio.run(run_load(f"http://127.0.0.1:{port}", load))
    return [exchange.events[0] - exchange.started_at for exchange in exchanges]


def percentile(values: Sequence[float], share: float) -> float:
    """By the nearest rank."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def measure(model: str, situation: Situation, requests: int, prompt_tokens: int) -> dict[str, list[float]]:
    """Seconds to the first token, `before` and `after` something has happened."""
    with _all_running(model, situation) as sides:
        _first_tokens(sides.proxy.port, 8, 0, prompt_tokens)
        before = _first_tokens(sides.proxy.port, requests, 1, prompt_tokens)
        with situation.disturb(sides):
            after = _first_tokens(sides.proxy.port, requests, 2, prompt_tokens)
    return {"before": before, "after": after}


def _line(name: str, found: dict[str, list[float]]) -> str:
    before, after = found["before"], found["after"]
    usual, late = statistics.median(before), percentile(after, 0.99)
    return (
        f"{name}: before: median {usual * 1000:.0f} ms, p99 {percentile(before, 0.99) * 1000:.0f}; after: median "
        f"{statistics.median(after) * 1000:.0f} ms, p99 {late * 1000:.0f} ({late / usual:.2f}x the median before), "
        f"longest of {len(after)} {' '.join(f'{each * 1000:.0f}' for each in sorted(after)[-3:])} ms"
    )


@click.command()
@click.argument("model", default="builtin")
@click.option("--situation", "names", type=click.Choice(tuple(SITUATIONS)), multiple=True, default=tuple(SITUATIONS))
@click.option("--requests", type=click.IntRange(2), default=200, show_default=True)
@click.option("--prompt-tokens", type=click.IntRange(1), default=130, show_default=True)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="The JSON file.")
def main(model: str, names: tuple[str, ...], requests: int, prompt_tokens: int, out: Path | None) -> None:
    """Measure each situation, and print a line for it."""
    found: dict[str, dict[str, list[float]]] = {}
    for name in names:
        found[name] = measure(model, SITUATIONS[name], requests, prompt_tokens)
        keep_record(out, model=model, prompt_tokens=prompt_tokens, situations=found)
        click.echo(_line(name, found[name]))


if __name__ == "__main__":
    main()
