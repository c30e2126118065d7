"""How soon the answer to a picture begins, on homenode and on llama-server, with the same files:

    python -m benchmarks.pictures MODEL --mmproj FILE --llama.cpp FOLDER [--side 512] [--rounds 9] [--json FILE]

Both servers stand with the same number of threads, which wait while they are not asked, and are asked in turns. In each
round each of them gets a picture that it has not seen, and then another question about it. Pictures are squares of
`--side` pixels of smooth colours that no other has. FOLDER has llama-server in it, MODEL and FILE are GGUF files, of
random weights as well. Without --llama.cpp homenode is measured alone. Times are those of a client on the same CPUs.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import io
import json
import os
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from benchmarks.contender import Command, Unavailable
from benchmarks.gaps import served_model
from benchmarks.machine import without_folders
from benchmarks.servers import Server, homenode_server, llama_server, running
from homenode.bench.runner import Interval, in_turns, keep_record
from homenode.bench.serving.clients import ClientLoad

_TIMEOUT_S = 300.0
_ROOM = 4096  # tokens of a slot: those of a picture, of the question and of the answer
_COLOURS = 8  # of a picture, to each side
_NEW, _KNOWN = "a picture that is new", "another question about it"


def picture(side: int, draw: random.Random) -> str:
    """Return a square PNG that no other equals, as a data URL."""
    from PIL import Image

    colours = Image.frombytes("RGB", (_COLOURS, _COLOURS), draw.randbytes(3 * _COLOURS * _COLOURS))
    written = io.BytesIO()
    colours.resize((side, side), Image.Resampling.BICUBIC).save(written, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(written.getvalue()).decode()


def first_token(server: Server, model: str, url: str, question: str) -> tuple[float, int]:
    """Return the seconds until the answer begins, and the tokens of the prompt. Raises Unavailable where it does not
    begin.
    """
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]
    asked = {"model": model, "messages": [{"role": "user", "content": parts}], "temperature": 0, "max_tokens": 1}
    begin = time.perf_counter()
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=_TIMEOUT_S)) as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps(asked), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        body = answer.read()
    took = time.perf_counter() - begin
    if answer.status != 200:
        raise Unavailable(f"{server.name}: {answer.status} {body[:300].decode(errors='replace')}")
    return took, int(json.loads(body)["usage"]["prompt_tokens"])


def servers_of(given: argparse.Namespace) -> Iterator[Server]:
    """What is measured, homenode first. Raises Unavailable."""
    eyes = ("--mmproj", str(given.mmproj))
    sides = [homenode_server(given.model, given.threads)]
    if given.llama is not None:
        load = ClientLoad(1, 1, _ROOM, 1)
        sides.append(llama_server(given.llama, given.model, given.threads, load, huge=False))
    for side in sides:
        yield replace(side, command=Command((*side.command.argv, *eyes), side.command.variables))


def measure(
    servers: Sequence[Server], side: int, rounds: int, questions: Sequence[str]
) -> tuple[dict[str, dict[str, list[float]]], list[int]]:
    """Return seconds by server and kind of question, and the prompts' tokens on each server. Raises Unavailable."""
    draw, found = random.Random(7), {server.name: defaultdict[str, list[float]](list) for server in servers}
    names = {server.name: served_model("127.0.0.1", server.port) for server in servers}
    tokens = []
    for server in servers:  # one that does not count
        tokens.append(first_token(server, names[server.name], picture(side, draw), questions[0])[1])
    for _, turn in in_turns(servers, rounds):
        url = picture(side, draw)
        for server in turn:
            for kind, question in zip((_NEW, _KNOWN), questions, strict=True):
                found[server.name][kind].append(first_token(server, names[server.name], url, question)[0])
    return {name: dict(own) for name, own in found.items()}, tokens


def table(found: dict[str, dict[str, list[float]]]) -> str:
    """Return a line for each kind of question: seconds of each server, and how many times as fast the first one is."""
    first, *others = found
    head = [
        f"| seconds to the first token | {' | '.join(found)} |" + "".join(f" {each} / {first} |" for each in others)
    ]
    lines = [*head, "|---" * (1 + len(found) + len(others)) + "|"]
    for kind in (_NEW, _KNOWN):
        own = " | ".join(str(Interval.of(found[name][kind])) for name in found)
        compared = "".join(f" {Interval.of_ratios(found[each][kind], found[first][kind])} |" for each in others)
        lines.append(f"| {kind} | {own} |{compared}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure both and print the table."""
    given = _parser().parse_args(argv)
    try:
        with ExitStack() as stack:
            servers = list(servers_of(given))
            for server in servers:
                stack.enter_context(running(server))
            found, tokens = measure(servers, given.side, given.rounds, given.question)
    except (Unavailable, OSError) as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    print(f"{given.model.name}, {given.mmproj.name}: {given.side} x {given.side} pixels, prompts of {tokens} tokens")
    print(table(found))
    commands = {server.name: without_folders(server.command.shown()) for server in servers}
    asked = {"side": given.side, "rounds": given.rounds, "threads": given.threads, "prompt_tokens": tokens}
    keep_record(given.json, model=given.model.name, load=asked, commands=commands, seconds=found)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks.pictures", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--mmproj", type=Path, required=True, metavar="FILE")
    parser.add_argument("--llama.cpp", dest="llama", type=Path, metavar="FOLDER", help="with llama-server in it")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--side", type=int, default=512, help="pixels")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--question", nargs=2, default=["What is it?", "And its colours?"], help="about a new picture, and a known one"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
