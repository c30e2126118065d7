"""The other process of `homenode bench transfer`: `python -m homenode.bench.kv_transfer.transfer_peer FD`. It obeys one
line of JSON after the other from a socket pair, and ends with it."""

from __future__ import annotations

import base64
import json
import socket
import sys
import time
from typing import Any

import msgspec
import numpy as np

from homenode.bench.kv_transfer.transfer_side import Side
from homenode.transfer.scheduler_events import Fetch


class Peer:
    """Receives; holds at most one `Side`."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._side: Side | None = None

    def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        """Do as an order says; the answer."""
        match order["do"]:
            case "side":
                self._side = Side(
                    "receiver",
                    order["channel"],
                    order["mode"],
                    order["page_bytes"],
                    order["pages"],
                    order["holds"],
                    order["in_place"],
                    order.get("keys"),
                )
                return {"document": base64.b64encode(self._side.document).decode()}
            case "close":
                if self._side is not None:
                    self._side.close()
                    self._side = None
            case "arrivals":
                assert self._side is not None
                at = [self._side.arrival(ticket, pages, 60.0) for ticket, pages in order["tickets"]]
                arrivals: dict[str, list[float]] = {"at": at}
                for name, times in (("unused", self._side.unused_at), ("copied", self._side.copied_at)):
                    arrivals[name] = [times.pop(ticket, 0.0) for ticket, _ in order["tickets"]]
                return arrivals
            case "failures":
                failures = self._side.failures if self._side is not None else []
                found, failures[:] = list(failures), []
                return {"failures": found}
            case "fetch":
                assert self._side is not None
                begin = time.perf_counter()
                self._side.agent.tell(Fetch(order["ticket"], list(range(order["pages"])), 0))
                return {"seconds": self._side.arrival(order["ticket"], order["pages"], 60.0) - begin}
            case "figures":
                assert self._side is not None
                figures: dict[str, Any] = msgspec.to_builtins(self._side.agent.figures())
                return figures
            case "copy seconds":
                return {"seconds": self._side.agent.statistics().copy_seconds if self._side is not None else 0.0}
            case "echo":
                return {"path": self._serve(socket.AF_UNIX, order, _echo)}
            case "take":
                return {"port": self._serve(socket.AF_INET, order, _take)}
        return {}

    def _serve(self, family: socket.AddressFamily, order: dict[str, Any], work: Any) -> str | int:
        """Listen, answer where, and work for the one who connects. The answer to the order was sent by then."""
        listener = socket.socket(family)
        listener.bind("" if family == socket.AF_UNIX else ("127.0.0.1", 0))
        listener.listen(1)
        listener.settimeout(10)
        name = listener.getsockname()
        answer(self._control, {"path": name[1:].decode()} if family == socket.AF_UNIX else {"port": name[1]})
        connection, _ = listener.accept()
        listener.close()
        connection.settimeout(60)
        with connection:
            work(connection, order)
        return 0


def _echo(connection: socket.socket, order: dict[str, Any]) -> None:
    """Send back what comes, until nothing does."""
    size = order["size"]
    while data := connection.recv(size):
        connection.sendall(data)


def _take(connection: socket.socket, order: dict[str, Any]) -> None:
    """Take blocks into memory of its own, and say so after each round of them."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    memory = np.ones((order["pages"], order["page_bytes"]), np.uint8)
    views = [memoryview(page) for page in memory]
    while True:
        for view in views:
            got = 0
            while got < len(view):
                count = connection.recv_into(view[got:])
                if not count:
                    return
                got += count
        connection.sendall(b"!")


def answer(control: socket.socket, reply: dict[str, Any]) -> None:
    """One line."""
    control.sendall(json.dumps(reply).encode() + b"\n")


def main(fd: int) -> None:
    """Obey until the socket ends."""
    control = socket.socket(fileno=fd)
    peer = Peer(control)
    try:
        for line in control.makefile("rb"):
            order = json.loads(line)
            reply = peer.obey(order)
            if order["do"] not in ("echo", "take"):
                answer(control, reply)
    finally:
        peer.obey({"do": "close"})


if __name__ == "__main__":
    main(int(sys.argv[1]))
