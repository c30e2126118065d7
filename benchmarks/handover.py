"""Time to first token through a prefill and a decode server, against one server:
`python -m benchmarks.handover MODEL --out FILE`.

All servers run at once, with the same threads, and are asked in turns, one request at a time, so that each has the
machine to itself. A prompt is new to all of them. What the hand-over itself took is read from the decode server's
metrics.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from benchmarks.contender import Command
from benchmarks.machine import machine, own_version
from benchmarks.servers import Server, free_port, running
from homenode.bench.serving.clients import ClientLoad, run_load
from homenode.cli.benchmarks.options import Numbers

MODES = {"push": (), "pull-eager": ("--pd-pull-mode",), "pull-delay": ("--pd-pull-mode", "--pd-delay-pull")}
_SECONDS = "homenode:kv_transfer_seconds_sum"


@dataclass(frozen=True)
class Turn:
    """One prompt, asked of one server and of the pair: seconds."""

    prompt_tokens: int
    alone: float
    pair: float
    transfer: float


def _server(name: str, port: int, verb: str, *rest: str) -> Server:
    argv = (sys.executable, "-m", "homenode.cli.main", verb, *rest, "--port", str(port))
    return Server(name, "", Command(argv), port)


@contextmanager
def _all_running(model: Path, channel: str, mode: str, threads: int) -> Iterator[tuple[int, int, int]]:
    """Ports of the single server, of the proxy and of the decode server."""
    alone, sender, receiver, proxy = (free_port() for _ in range(4))
    common = (str(model), "--threads", str(threads), "--kv-cache-memory", "512MiB")
    transfer = ("--transfer-channel", channel, *MODES[mode], "--pd-buffer-size", "256MiB")
    servers = [
        _server("alone", alone, "serve", *common),
        _server("sender", sender, "serve", *common, "--pd-role", "sender", *transfer),
        _server("receiver", receiver, "serve", *common, "--pd-role", "receiver", *transfer),
    ]
    front = _server(
        "proxy", proxy, "proxy", "--prefill", f"http://127.0.0.1:{sender}", "--decode", f"http://127.0.0.1:{receiver}"
    )
    with ExitStack() as stack:
        for server in [*servers, front]:
            stack.enter_context(running(server))
        yield alone, proxy, receiver


def _first_token_s(port: int, tokens: int, seed: int) -> float:
    [exchange] = asyncio.run(run_load(f"http://127.0.0.1:{port}", ClientLoad(1, 1, tokens, 2, seed=seed)))
    return exchange.events[0] - exchange.started_at


def _transfer_s(port: int) -> float:
    """What all hand-overs so far took together."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == _SECONDS)


def measure(model: Path, channel: str, mode: str, threads: int, prompts: tuple[int, ...], turns: int) -> list[Turn]:
    """All turns; the order of the two is changed from turn to turn."""
    found = []
    with _all_running(model, channel, mode, threads) as (alone, proxy, receiver):
        for port in (alone, proxy):
            _first_token_s(port, 64, 1)
        for turn in range(turns):
            for tokens in prompts:
                seed, before, taken = 1000 * turn + tokens, _transfer_s(receiver), {}
                for port in (alone, proxy) if turn % 2 else (proxy, alone):
                    taken[port] = _first_token_s(port, tokens, seed)
                found.append(Turn(tokens, taken[alone], taken[proxy], _transfer_s(receiver) - before))
    return found


@click.command()
@click.argument("model", type=click.Path(path_type=Path, exists=True))
@click.option("--channel", type=click.Choice(("shm", "tcp")), default="shm", show_default=True)
@click.option(
    "--mode", "modes", type=click.Choice(tuple(MODES)), multiple=True, default=tuple(MODES), show_default=True
)
@click.option("--prompt-tokens", "prompts", type=Numbers(), default="128,512,1024", show_default=True)
@click.option("--turns", type=click.IntRange(1), default=5, show_default=True)
@click.option("--threads", type=click.IntRange(1), default=2, show_default=True)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The JSON file.")
def main(
    model: Path, channel: str, modes: tuple[str, ...], prompts: tuple[int, ...], turns: int, threads: int, out: Path
) -> None:
    """Measure time to first token in each mode."""
    record = {
        "machine": machine(),
        "version": own_version(),
        "model": model.name,
        "channel": channel,
        "threads": threads,
        "modes": {},
    }
    for mode in modes:
        found = measure(model, channel, mode, threads, prompts, turns)
        record["modes"][mode] = [asdict(turn) for turn in found]  # type: ignore[index]
        out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        for tokens in prompts:
            own = [turn for turn in found if turn.prompt_tokens == tokens]
            alone, pair = (statistics.median(getattr(turn, name) for turn in own) for name in ("alone", "pair"))
            transfer = statistics.median(turn.transfer for turn in own)
            click.echo(
                f"{mode}, {tokens} tokens: alone {alone * 1000:.1f} ms, pair {pair * 1000:.1f} ms "
                f"({pair / alone:.3f}x), "
                f"hand-over {transfer * 1000:.2f} ms"
            )


if __name__ == "__main__":
    main()
