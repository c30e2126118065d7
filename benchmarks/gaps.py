"""How long readers and short prompts wait beside a long prompt, on homenode and on other servers:

    python -m benchmarks.gaps MODEL [--llama.cpp FOLDER] [--server NAME=URL] [--server "NAME=COMMAND"] [--readers 1]
                              [--long 6000] [--short 16] [--rounds 2] [--vocab-size 30000] [--json FILE]

One server after the other serves the same file, with the same number of threads. In each round readers stream answers;
while they do, somebody sends a prompt of `--long` tokens, and somebody else prompts of `--short` tokens, one after the
other, until the long one has its first token. All prompts are random tokens that no other begins with. FOLDER has
llama-server in it. Of any other server a URL is given where it runs, or its command, in which {model}, {port} and
{threads} are put in; it has to take token ids at /v1/completions. vLLM's CPU build for example, which reads folders:

    --server "vLLM=VENV/bin/vllm serve {model} --port {port} --max-model-len 16384"

Times are those of a client on the same CPUs. Each load of a server ends within ten minutes.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from benchmarks.contender import Command, Unavailable
from benchmarks.gap_figures import Beside, figures_of, gaps_within, table
from benchmarks.machine import without_folders
from benchmarks.servers import Server, free_port, homenode_server, llama_server, running
from homenode.bench.runner import keep_record
from homenode.bench.serving.clients import ClientLoad

_LEAST_GAPS = 25  # of a reader before the long prompt comes
_READ_TOKENS = 4000  # of a reader's answer, more than it has time for
_FIRST_ID = 100  # below are the special tokens of many vocabularies
_TIMEOUT_S = 600.0
_AFTER_S = 1.0  # between the long prompt and the first short one
_MOST_SHORT = 8


@dataclass(frozen=True)
class Load:
    """What is asked for, in tokens, of which there are `vocab_size`."""

    readers: int
    long: int
    short: int
    rounds: int
    vocab_size: int

    def prompt(self, draw: random.Random, size: int) -> list[int]:
        """Tokens that no other prompt begins with."""
        return draw.choices(range(_FIRST_ID, self.vocab_size), k=size)


@dataclass(frozen=True)
class Address:
    """A server that answers; `model`: what it calls it."""

    host: str
    port: int
    model: str

    def stream(self, prompt: Sequence[int], limit: int, leave: threading.Event | None = None) -> Iterator[float]:
        """When each event with a token came, by time.perf_counter(). Ends when `leave` is set. Raises Unavailable for
        an answer that is none."""
        asked = {"model": self.model, "prompt": list(prompt), "max_tokens": limit, "temperature": 0, "stream": True}
        body = json.dumps(asked | {"ignore_eos": True})
        with closing(http.client.HTTPConnection(self.host, self.port, timeout=_TIMEOUT_S)) as connection:
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                raise Unavailable(f"{answer.status} {answer.read(300).decode(errors='replace')}")
            for line in answer:
                if leave is not None and leave.is_set():
                    return
                if line.startswith(b"data: {") and json.loads(line[6:]).get("choices"):
                    yield time.perf_counter()

    def first_token(self, prompt: Sequence[int]) -> float:
        """Seconds until it comes. Raises Unavailable where none does."""
        begin = time.perf_counter()
        for moment in self.stream(prompt, 1):
            return moment - begin
        raise Unavailable("a stream without a token")


class Reader:
    """Somebody who reads along, on a thread: `moments` of the tokens so far."""

    def __init__(self, address: Address, prompt: Sequence[int]) -> None:
        self.moments: list[float] = []
        self.failure: Exception | None = None
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(address, prompt), daemon=True)
        self._thread.start()

    def _read(self, address: Address, prompt: Sequence[int]) -> None:
        try:
            for moment in address.stream(prompt, _READ_TOKENS, self._leave):
                self.moments.append(moment)
        except (OSError, http.client.HTTPException, ValueError, Unavailable) as error:
            self.failure = error

    @property
    def reads(self) -> bool:
        """Whether its answer goes on."""
        return self._thread.is_alive()

    def leave(self) -> None:
        """Go away, at the next token."""
        self._leave.set()
        self._thread.join(_TIMEOUT_S)


def measure_round(address: Address, load: Load, draw: random.Random) -> Beside:
    """One round on a server that has nothing else to do. Raises Unavailable when it does not answer as it should."""
    short_alone = median(address.first_token(load.prompt(draw, load.short)) for _ in range(3))
    readers = [Reader(address, load.prompt(draw, 64)) for _ in range(load.readers)]
    try:
        _wait(lambda: all(len(each.moments) > _LEAST_GAPS or not each.reads for each in readers))
        alone = median(gap for each in readers for gap in gaps_within(each.moments, 0.0, time.perf_counter())[5:])
        begin, long = time.perf_counter(), _Asked(address, load.prompt(draw, load.long))
        time.sleep(_AFTER_S)
        short: list[float] = []
        while len(short) < _MOST_SHORT and (not short or long.waits):
            short.append(address.first_token(load.prompt(draw, load.short)))
        took = long.seconds()
        _wait(lambda: all(not each.reads or each.moments[-1] > begin + took for each in readers))
        gaps = [gap for each in readers for gap in gaps_within(each.moments, begin, begin + took)]
        for each in readers:
            if not each.reads:
                raise Unavailable(f"a reader's answer ended before: {each.failure or f'{len(each.moments)} tokens'}")
        return Beside(tuple(gaps), alone, tuple(short), short_alone, took)
    finally:
        for each in readers:
            each.leave()


class _Asked:
    """A prompt whose first token somebody waits for, on a thread."""

    def __init__(self, address: Address, prompt: Sequence[int]) -> None:
        self._found: list[float | Exception] = []
        self._thread = threading.Thread(target=self._ask, args=(address, prompt), daemon=True)
        self._thread.start()

    def _ask(self, address: Address, prompt: Sequence[int]) -> None:
        try:
            self._found.append(address.first_token(prompt))
        except (OSError, http.client.HTTPException, ValueError, Unavailable) as error:
            self._found.append(error)

    @property
    def waits(self) -> bool:
        return self._thread.is_alive()

    def seconds(self) -> float:
        self._thread.join(_TIMEOUT_S)
        for found in self._found:
            if isinstance(found, float):
                return found
            raise Unavailable(f"the long prompt: {found}")
        raise Unavailable(f"the long prompt has no token after {_TIMEOUT_S:.0f} s")


def _wait(done: Callable[[], bool]) -> None:
    end = time.monotonic() + _TIMEOUT_S
    while not done():
        if time.monotonic() > end:
            raise Unavailable(f"nothing came for {_TIMEOUT_S:.0f} s")
        time.sleep(0.01)


def served_model(host: str, port: int) -> str:
    """The name of the first model that a server has. Raises Unavailable."""
    try:
        with closing(http.client.HTTPConnection(host, port, timeout=30)) as connection:
            connection.request("GET", "/v1/models")
            return str(json.loads(connection.getresponse().read())["data"][0]["id"])
    except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
        raise Unavailable(f"http://{host}:{port}/v1/models: {error!r}") from error


def measure(host: str, port: int, load: Load) -> list[Beside]:
    """All rounds on a server that runs, after a short one that does not count."""
    address, draw = Address(host, port, served_model(host, port)), random.Random(7)
    address.first_token(load.prompt(draw, 256))
    return [measure_round(address, load, draw) for _ in range(load.rounds)]


def servers_of(
    model: Path, threads: int, load: Load, llama: Path | None, others: Sequence[str]
) -> Iterator[tuple[str, Server | str]]:
    """Names, and what is to be started, or the URL of what runs. Raises Unavailable, and ValueError for an argument
    that is none."""
    yield "homenode", homenode_server(model, threads)
    if llama is not None:
        clients = ClientLoad(load.readers + 2, 1, load.long, _READ_TOKENS)
        yield "llama-server", llama_server(llama, model, threads, clients, huge=False)
    for each in others:
        name, is_given, how = each.partition("=")
        if not name or not is_given or not how:
            raise ValueError(f"--server {each!r}: wanted is NAME=URL or NAME=COMMAND")
        port = free_port()
        filled = how.replace("{model}", str(model)).replace("{port}", str(port)).replace("{threads}", str(threads))
        yield name, how if how.startswith("http://") else Server(name, "", Command(tuple(shlex.split(filled))), port)


def measure_server(server: Server | str, load: Load) -> list[Beside]:
    """Start it, unless it runs, and measure. Raises Unavailable."""
    if isinstance(server, str):
        parts = urlsplit(server)
        return measure(parts.hostname or "127.0.0.1", parts.port or 80, load)
    with running(server):
        return measure("127.0.0.1", server.port, load)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all servers and print the table."""
    given = _parser().parse_args(argv)
    load = Load(given.readers, given.long, given.short, given.rounds, given.vocab_size)
    found: dict[str, list[Beside]] = {}
    commands: dict[str, str] = {}
    for name, server in servers_of(given.model, given.threads, load, given.llama, given.server):
        commands[name] = server if isinstance(server, str) else without_folders(server.command.shown())
        try:
            found[name] = measure_server(server, load)
            print(f"{name}: {figures_of(found[name])}", file=sys.stderr, flush=True)
        except Unavailable as error:
            print(f"{name} could not be measured: {error}", file=sys.stderr)
    if not found:
        return 1
    figures = {name: figures_of(rounds) for name, rounds in found.items()}
    print(table(figures))
    keep_record(
        given.json,
        model=given.model.name,
        load=asdict(load) | {"threads": given.threads},
        commands=commands,
        figures={name: asdict(own) for name, own in figures.items()},
        rounds={name: [each.to_json() for each in rounds] for name, rounds in found.items()},
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks.gaps", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--llama.cpp", dest="llama", type=Path, metavar="FOLDER", help="with llama-server in it")
    parser.add_argument("--server", action="append", default=[], metavar="NAME=URL|COMMAND")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--readers", type=int, default=1)
    parser.add_argument("--long", type=int, default=6000, help="tokens of the long prompt")
    parser.add_argument("--short", type=int, default=16, help="tokens of the short ones")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--vocab-size", type=int, default=30_000, help="prompts are drawn of these ids")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
