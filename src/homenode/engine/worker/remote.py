"""A worker on another host than its engine: `python -m homenode.engine.worker.remote ENGINE WORKER LIFE HOST PLACE
NAME`, the credentials on its standard input (`net.greeting`).

ENGINE is where the engine listens, HOST:PORT. HOST is a word for this host, the same for all workers here. PLACE is
`given` on the engine's own host, where the plan is the engine's; elsewhere INDEX/COUNT of the engine's workers on this
host, which then are planned for here. Everything else is as in `worker.main`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace

from homenode.engine.channels.messages import Join
from homenode.engine.channels.tcp import open_tcp
from homenode.engine.channels.topics import IAm, call
from homenode.engine.child_process import call_itself
from homenode.engine.worker import main as worker_main
from homenode.engine.worker.worker import PartWorker
from homenode.errors import HomenodeError
from homenode.net.greeting import Credentials
from homenode.net.secure_stream import local_host
from homenode.net.streams import drain

_CONNECT_S = 30.0
_KEYS_VARIABLE = "HOMENODE_PEER_KEYS"  # a host whose folder lies elsewhere than the engine's


def main(arguments: list[str]) -> int:
    """Connect, and be a worker until the engine leaves. Returns the exit code."""
    address, worker, life, host, position, name = arguments
    call_itself(name)
    try:
        credentials = Credentials.of_line(sys.stdin.readline(), os.environ.get(_KEYS_VARIABLE))
        if credentials.keys is not None:
            credentials.keys.check()
        sock = call(address, credentials, IAm(int(worker), int(life)), _CONNECT_S)
    except HomenodeError as error:
        print(f"{name}: {error.message}", file=sys.stderr)
        return 1
    opened = open_tcp(address, local_host(sock), credentials, host)
    words = [str(sock.detach()), str(os.getppid()), name]
    try:
        return worker_main.main(words, make=PartWorker, open_for=opened, place=_placed(position))
    finally:
        drain()


def _placed(position: str) -> Callable[[Join], Join]:
    """Return the way from what the engine said to what it is on this host."""
    if position == "given":
        return lambda join: join
    index, count = map(int, position.split("/"))
    return lambda join: planned_here(join, index, count)


def planned_here(join: Join, index: int, count: int) -> Join:
    """Return the order with the place that this host has for worker `index` of the `count` that run on it, and its part
    of the memory.
    """
    import msgspec

    from homenode.engine.assignment import EngineAssignment
    from homenode.engine.devices import is_accelerator
    from homenode.engine.plan.worker_bindings import places_elsewhere
    from homenode.host.discovery.read import read_host
    from homenode.host.topology.source import LiveSource

    host = read_host(LiveSource(), accelerators=is_accelerator(join.device))
    assignment = EngineAssignment(join.config, numa_decision=join.numa_decision)
    own = places_elsewhere(host, assignment, join.device, count)
    there = own.bindings[index]
    config, share = join.config, host.allowance.memory_available // count
    if own.shared:
        config = replace(config, compute=replace(config.compute, spin_us=0))
    return msgspec.structs.replace(join, binding=there, config=config, memory_share=share, allowed_cpus=[])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
