"""Servers under load: how each is started, when it is ready, and what its requests need besides the prompt."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.contender import Command, Unavailable, existing
from homenode.bench.serving.clients import ClientLoad
from homenode.bench.serving.server_process import end_process

HUGE_PAGES = "huge pages"
_STARTING_S = 300.0
_POLL_S = 0.1
_STOPPING_S = 30.0


@dataclass(frozen=True)
class Server:
    """`health`: the path that answers 200 when requests are taken."""

    engine: str
    variant: str
    command: Command
    port: int
    health: str = "/health"

    @property
    def name(self) -> str:
        """Engine and variant."""
        return f"{self.engine}, {self.variant}" if self.variant else self.engine

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Server:
        """The inverse of `to_json`."""
        command = Command(tuple(value["command"]["argv"]), value["command"]["variables"])
        return cls(**{**value, "command": command})


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def homenode_server(model: Path, threads: int) -> Server:
    """`homenode serve` as it comes."""
    port = free_port()
    argv = (
        *(sys.executable, "-m", "homenode.cli.main", "serve", str(model), "--port", str(port)),
        *("--threads", str(threads)),
    )
    return Server("homenode", "", Command(argv), port)


def llama_server(folder: Path, model: Path, threads: int, load: ClientLoad, *, huge: bool) -> Server:
    """`llama-server` with a slot for each client and room for prompt and answer in each; nothing to reuse between
    requests. Raises Unavailable."""
    port = free_port()
    # Its slots are rounded up to so many tokens anyway.
    room = -(-(load.prompt_tokens + load.gen_tokens + 8) // 256) * 256
    argv = (
        *(str(existing(folder / "llama-server")), "-m", str(model), "--port", str(port), "-t", str(threads)),
        *(
            "-np",
            str(load.clients),
            "-c",
            str(load.clients * room),
            "-b",
            "2048",
            "-ub",
            "512",
            "--no-webui",
            "--cache-ram",
            "0",
        ),
        *(("--load-mode", "none") if huge else ()),
    )
    variables = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"} if huge else {}
    return Server("llama-server", HUGE_PAGES if huge else "default", Command(argv, variables), port)


@contextmanager
def running(server: Server) -> Iterator[int]:
    """Start it, wait until it is ready, give its process id, and end it. Raises Unavailable when it ends before, or
    takes too long."""
    with tempfile.TemporaryFile() as log:
        variables = {**os.environ, **server.command.variables}
        process = subprocess.Popen(server.command.argv, env=variables, stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait_until_ready(server, process)
            yield process.pid
        except Unavailable as error:
            log.seek(0)
            raise Unavailable(f"{error}: {log.read().decode(errors='replace').strip()[-400:]}") from error
        finally:
            end_process(process, _STOPPING_S)


def _wait_until_ready(server: Server, process: subprocess.Popen[bytes]) -> None:
    limit = time.monotonic() + _STARTING_S
    while time.monotonic() < limit:
        if process.poll() is not None:
            raise Unavailable(f"{server.engine} ended with {process.returncode} while starting")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{server.health}", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (OSError, urllib.error.URLError):
            pass
        time.sleep(_POLL_S)
    raise Unavailable(f"{server.engine} was not ready within {_STARTING_S:.0f} s")
