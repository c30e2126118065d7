"""One pair of served loads in one go: our server, then the other one, and a reading of the machine before, between and
after.

`python -m benchmarks.served_pair TASK THREADS`: TASK is a JSON object with `load` (fields of
`homenode.bench.serving.clients.Load`) and `servers` (two, `Server.to_json`). Prints one JSON object like
`benchmarks.pair`, with `served`, the figures of each server, instead of outputs.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from benchmarks.contender import Unavailable
from benchmarks.others import Others
from benchmarks.pair import reading_json
from benchmarks.servers import Server, running
from homenode.bench.machine.repetition import MachineReading, take_reading
from homenode.bench.serving.clients import ClientLoad, run_load
from homenode.bench.serving.served import Served, served
from homenode.errors import HomenodeError

_WARM_UP = 2  # tokens of the answer to one short request, uncounted


def under_load(server: Server, load: ClientLoad) -> Served:
    """Start the server, warm it up, measure, stop it. Raises Unavailable for the server, HomenodeError for the load."""
    url = f"http://127.0.0.1:{server.port}"
    with running(server):
        asyncio.run(run_load(url, replace(load, clients=1, requests=1, prompt_tokens=16, gen_tokens=_WARM_UP)))
        found = served(load.clients, load.prompt_tokens, asyncio.run(run_load(url, load)))
    if found.tokens != found.requests * load.gen_tokens:
        raise Unavailable(f"{found.tokens} tokens came where {found.requests * load.gen_tokens} were asked for")
    return found


def run_served_pair(task: dict[str, Any], read: Callable[[], MachineReading]) -> dict[str, Any]:
    """What the program prints; `read` reads the machine."""
    load = ClientLoad(**task["load"])
    readings, figures, shares = [reading_json(read())], [], []
    for value in task["servers"]:
        try:
            with Others() as others:
                figures.append(asdict(under_load(Server.from_json(value), load)))
        except (Unavailable, HomenodeError, ValueError) as error:
            return {"failed": f"{value['engine']}: {error}"}
        shares.append(others.share)
        readings.append(reading_json(read()))
    return {"readings": readings, "served": figures, "others": shares}


def main() -> None:
    """Measure one pair."""
    from homenode.cli.benchmarks.options import meter_of, native_backend

    meter = meter_of(native_backend(int(sys.argv[2]), None))
    print(json.dumps(run_served_pair(json.loads(sys.argv[1]), lambda: take_reading(meter))))


if __name__ == "__main__":
    main()
