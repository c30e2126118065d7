"""`homenode serve` as a user starts it: a process of its own, with the native engine behind it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx

import homenode
from tests.paths import ROOT, STORIES
from tests.waiting import PATIENCE_S, shown, wait_until

BUILTIN = Path(homenode.__file__).parent / "builtin" / "model.safetensors"
_READY = re.compile(rb"ready (https?://\S+)")
_CRASH = re.compile(rb"^(?:Fatal Python error|Current thread).*?\n\n", re.MULTILINE | re.DOTALL)


class LiveServer:
    """A running server of `model`, else of the built-in one, or of the stories model where there is none yet. Clients
    call any of them `live`.

    `before`: words of a command that starts it.
    """

    def __init__(self, *flags: str, model: Path | None = None, before: Sequence[str] = ()) -> None:
        self.chat = model is None and BUILTIN.is_file()
        target = [] if self.chat else [str(model or STORIES)]
        self.process = subprocess.Popen(
            [*before, sys.executable, "-m", "homenode.cli.main", "serve", *target, "--port", "0", "--served-model-name",
                "live", *flags],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        self.log: list[bytes] = []
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read)  # a full pipe would stop the server
        self._reader.start()
        if not self._ready.wait(PATIENCE_S) or not self.url:
            self.close()
            raise AssertionError(f"the server was not ready: {self.log_end()}")

    @classmethod
    def start_after(cls, delay_s: float, *flags: str) -> LiveServer:
        """One that is started when so many seconds have passed."""
        time.sleep(delay_s)
        return cls(*flags)

    @classmethod
    def possible(cls) -> bool:
        """Whether there is a model to serve."""
        return BUILTIN.is_file() or STORIES.is_dir()

    @property
    def url(self) -> str:
        """Where it listens; empty before it does."""
        found = _READY.search(b"".join(self.log))
        return found[1].decode() if found else ""

    def children(self, kind: str) -> dict[str, int]:
        """Process ids by the name they were given, of those whose name begins with `kind`, in the order of
        their names.
        """
        found = {}
        for pid in self._children():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, IndexError):  # it has just ended
                if Path(f"/proc/{pid}/comm").read_text().startswith(kind):
                    found[Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[-2].decode()] = pid
        return dict(sorted(found.items()))

    def engines(self) -> list[int]:
        """Process ids of the engines that are the server's own children; others render chat templates."""
        found = []
        for pid in self._children():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                if b"homenode.engine.runtime.process" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    found.append(pid)
        return found

    def _children(self) -> Iterator[int]:
        """Processes that threads of the server have started."""
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has just ended
                yield from map(int, (task / "children").read_text().split())

    def log_end(self) -> str:
        """Return the end of its log, and before it the thread that crashed in each dump of a crash, which has many
        threads and so is longer than what is shown.
        """
        log = b"".join(self.log)
        before = [found[0] for found in _CRASH.finditer(log) if found.start() < len(log) - 3000]
        return b"\n".join([*before, log[-3000:]]).decode(errors="replace")

    def wait_for(self, holds: Callable[[], object]) -> None:
        """Return once it holds, asked again and again. An error of the connection, as of a front that was just killed,
        is as if it did not; it is an error that the server ends meanwhile.
        """

        def looks() -> bool:
            code = self.process.poll()
            assert code is None, f"the server ended with {code}: {self.log_end()}"
            with contextlib.suppress(httpx.TransportError):
                return bool(holds())
            return False

        wait_until(looks, lambda: f"{shown(holds)}\n{self.log_end()}", 4 * PATIENCE_S, 0.05)

    def close(self) -> int:
        """SIGTERM, as an operator ends it; the exit code, -9 when it had to be killed."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        return self.process.returncode

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self.log.append(line)
                if _READY.search(line):
                    self._ready.set()
        self._ready.set()  # it ended


def connections(pid: int, port: int) -> int:
    """Open connections to `port` that a process has."""
    inodes = {line.split()[9] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if _is_open(line, port)}
    mine = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has just been closed
            mine.append(str(entry.readlink()))
    return sum(link.startswith("socket:[") and link[8:-1] in inodes for link in mine)


def _is_open(line: str, port: int) -> bool:
    fields = line.split()
    return int(fields[1].split(":")[1], 16) == port and fields[3] == "01"


def workers(server: LiveServer) -> dict[str, int]:
    """Process ids by the names in their command lines."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if (
                words[-2:-1]
                and words[-2].startswith(b"homenode-worker-")
                and _descends(int(folder.name), server.process.pid)
            ):
                found[words[-2].decode()] = int(folder.name)
        except OSError:
            continue  # it has ended meanwhile
    return found


def _descends(pid: int, from_pid: int) -> bool:
    while pid > 1:
        if pid == from_pid:
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return False
