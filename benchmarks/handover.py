"""First token, time per output token and memory of a prefill and a decode server, against one server:
`python -m benchmarks.handover MODEL --out FILE`.

All servers run at once, with the same threads, and are asked in turns, so that each has the machine to itself: by one
client, or by several (`--clients`), whose requests then wait at the decode server (`--receiver-seqs`). A prompt is new
to all of them. What the hand-over itself took is read from the decode server's metrics, and so are the pages of KV that
either side keeps still for hand-overs, the most that were seen at once.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click

from benchmarks.contender import Command
from benchmarks.servers import Server, free_port, running
from homenode.bench.runner import keep_record
from homenode.bench.serving.clients import ClientLoad, TimedCompletion, run_load
from homenode.cli.benchmarks.options import Numbers

MODES = {
    "push": (),
    "pull-eager": ("--pd-pull-mode",),
    "pull-delay": ("--pd-pull-mode", "--pd-delay-pull"),
    "pull-eager, offload": ("--pd-pull-mode",),
    "pull-delay, offload": ("--pd-pull-mode", "--pd-delay-pull"),
}
_OFFLOAD = ("--pd-use-cpu-offload", "--pd-cpu-buffer-size", "256MiB")  # of the sender
_SECONDS, _PINNED, _USED = (
    f"homenode:{name}" for name in ("kv_transfer_seconds_sum", "kv_transfer_pinned_pages", "kv_cache_usage_perc")
)
_LOOK_EVERY_S = 0.05


@dataclass(frozen=True)
class Answers:
    """What one side gave in a turn: of each answer seconds to the first token, and those of each token after it;
    and the gaps between events, which may hold several tokens.
    """

    first: tuple[float, ...]
    token: tuple[float, ...]
    gaps: tuple[float, ...]

    @classmethod
    def of(cls, exchanges: Sequence[TimedCompletion]) -> Answers:
        """The times of completions."""
        gaps = [later - earlier for exchange in exchanges for earlier, later in itertools.pairwise(exchange.events)]
        first = tuple(exchange.events[0] - exchange.started_at for exchange in exchanges)
        return cls(first, tuple(exchange.token_seconds for exchange in exchanges), tuple(gaps))


@dataclass(frozen=True)
class Turn:
    """The same prompts, asked of one server and of the pair. `transfer`: seconds that the hand-overs took together;
    `peaks`: of the sender and the receiver the most pages that were pinned, and the largest share of KV blocks in
    use."""

    prompt_tokens: int
    alone: Answers
    pair: Answers
    transfer: float
    peaks: dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Ports:
    """Where each server of a mode listens."""

    alone: int
    sender: int
    receiver: int
    proxy: int


@dataclass
class PeakWatch:
    """Looks at the metrics of both sides until it is told to stop."""

    ports: Ports
    peaks: dict[str, tuple[float, float]] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> PeakWatch:
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(_LOOK_EVERY_S):
            for side in ("sender", "receiver"):
                read = _metrics(getattr(self.ports, side))
                seen = (read.get(_PINNED, 0.0), read.get(_USED, 0.0))
                before = self.peaks.get(side, (0.0, 0.0))
                self.peaks[side] = (max(before[0], seen[0]), max(before[1], seen[1]))


def _server(name: str, port: int, verb: str, *rest: str) -> Server:
    argv = (sys.executable, "-m", "homenode.cli.main", verb, *rest, "--port", str(port))
    return Server(name, "", Command(argv), port)


@contextmanager
def _all_running(
    model: Path, channel: str, mode: str, threads: int, receiver_seqs: int, step_tokens: int
) -> Iterator[Ports]:
    ports = Ports(*(free_port() for _ in range(4)))
    sizes = ("--kv-cache-memory", "512MiB", "--max-num-batched-tokens", str(step_tokens))
    common = (str(model), "--threads", str(threads), *sizes)
    transfer = ("--transfer-channel", channel, *MODES[mode], "--pd-buffer-size", "256MiB")
    offload = _OFFLOAD if "offload" in mode else ()
    few = ("--max-num-seqs", str(receiver_seqs))
    servers = [
        _server("alone", ports.alone, "serve", *common),
        _server("sender", ports.sender, "serve", *common, "--pd-role", "sender", *transfer, *offload),
        _server("receiver", ports.receiver, "serve", *common, "--pd-role", "receiver", *transfer, *few),
    ]
    sides = ("--prefill", f"http://127.0.0.1:{ports.sender}", "--decode", f"http://127.0.0.1:{ports.receiver}")
    with ExitStack() as stack:
        for server in [*servers, _server("proxy", ports.proxy, "proxy", *sides)]:
            stack.enter_context(running(server))
        yield ports


def _ask(port: int, clients: int, tokens: int, gen_tokens: int, seed: int) -> Answers:
    load = ClientLoad(clients, 1, tokens, gen_tokens, seed=seed)
    return Answers.of(asyncio.run(run_load(f"http://127.0.0.1:{port}", load)))


def _metrics(port: int) -> dict[str, float]:
    """The last value of each metric, labels left out."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = [line for line in answer.read().decode().splitlines() if line and not line.startswith("#")]
    return {line.split("{")[0].split(" ")[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


def measure(
    model: Path, mode: str, prompts: tuple[int, ...], *, channel: str, threads: int, turns: int, clients: int,
    gen_tokens: int, receiver_seqs: int, step_tokens: int,
) -> list[Turn]:  # fmt: skip
    """All turns; the order of the two is changed from turn to turn."""
    found = []
    with _all_running(model, channel, mode, threads, receiver_seqs, step_tokens) as ports:
        for port in (ports.alone, ports.proxy):
            _ask(port, 1, 64, 2, 1)
        for turn in range(turns):
            for tokens in prompts:
                before = _metrics(ports.receiver)[_SECONDS]
                answers = {}
                for port in (ports.alone, ports.proxy) if turn % 2 else (ports.proxy, ports.alone):
                    with PeakWatch(ports) as watch:
                        answers[port] = _ask(port, clients, tokens, gen_tokens, 1000 * turn + tokens)
                    if port == ports.proxy:
                        peaks = watch.peaks
                taken = _metrics(ports.receiver)[_SECONDS] - before
                found.append(Turn(tokens, answers[ports.alone], answers[ports.proxy], taken, peaks))
    return found


def _line(mode: str, tokens: int, found: Sequence[Turn]) -> str:
    """What a mode came to for prompts of one length: medians over all answers, and the peaks."""
    own = [turn for turn in found if turn.prompt_tokens == tokens]

    def median(side: str, what: str) -> float:
        values: list[float] = [value for turn in own for value in getattr(getattr(turn, side), what)]
        return statistics.median(values or [0.0])

    def longest(side: str) -> float:
        return max((value for turn in own for value in getattr(turn, side).gaps), default=0.0)

    first, token = ((median("alone", what), median("pair", what)) for what in ("first", "token"))
    peaks = {
        side: [max(turn.peaks.get(side, (0.0, 0.0))[at] for turn in own) for at in (0, 1)]
        for side in ("sender", "receiver")
    }
    told = ", ".join(f"{side} {pinned:.0f} pages, {used:.1%} of KV" for side, (pinned, used) in peaks.items())
    return (
        f"{mode}, {tokens} tokens: first token alone {first[0] * 1000:.1f} ms, pair {first[1] * 1000:.1f} ms "
        f"({first[1] / first[0]:.3f}x); time of a token alone {token[0] * 1000:.2f} ms, pair {token[1] * 1000:.2f} "
        f"ms ({token[1] / max(token[0], 1e-9):.3f}x), longest gap alone {longest('alone') * 1000:.1f} ms, pair "
        f"{longest('pair') * 1000:.1f} ms; hand-over "
        f"{statistics.median(turn.transfer for turn in own) * 1000:.2f} ms; pinned at most: {told}"
    )


@click.command()
@click.argument("model", type=click.Path(path_type=Path, exists=True))
@click.option("--channel", type=click.Choice(("shm", "tcp")), default="shm", show_default=True)
@click.option(
    "--mode", "modes", type=click.Choice(tuple(MODES)), multiple=True, default=tuple(MODES), show_default=True
)
@click.option("--prompt-tokens", "prompts", type=Numbers(), default="128,512,1024", show_default=True)
@click.option("--turns", type=click.IntRange(1), default=5, show_default=True)
@click.option("--clients", type=click.IntRange(1), default=1, show_default=True)
@click.option("--gen-tokens", type=click.IntRange(2), default=32, show_default=True)
@click.option(
    "--receiver-seqs",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="--max-num-seqs of the decode server.",
)
@click.option("--threads", type=click.IntRange(1), default=2, show_default=True)
@click.option(
    "--step-tokens",
    type=click.IntRange(1),
    default=2048,
    show_default=True,
    help="--max-num-batched-tokens of all servers: longer prompts are computed in chunks.",
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The JSON file.")
def main(model: Path, modes: tuple[str, ...], prompts: tuple[int, ...], out: Path, **settings: int | str) -> None:
    """Measure each mode, and print a line for each length of prompt."""
    found: dict[str, list[Turn]] = {}
    for mode in modes:
        found[mode] = measure(model, mode, prompts, **settings)  # type: ignore[arg-type]
        turns_of = {name: [asdict(turn) for turn in turns] for name, turns in found.items()}
        keep_record(out, model=model.name, settings=settings, modes=turns_of)
        for tokens in prompts:
            click.echo(_line(mode, tokens, found[mode]))


if __name__ == "__main__":
    main()
