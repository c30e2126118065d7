"""The time that `homenode serve` takes from the command to a /health of 200, phase by phase, and the memory it then has
while nothing is asked.
"""

from __future__ import annotations

import os
import re
import select
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass

from homenode.bench.serving.server_process import end_process, pss_bytes
from homenode.errors import PeerError
from homenode.host.bind.base.threads import descendants

_URL = re.compile(rb"ready (http://\S+)")
_PHASE = re.compile(r"^homenode:start_phase_seconds\{([^}]*)\} (\S+)$", re.M)
_LABEL = re.compile(r'(phase|process)="([^"]*)"')
_START_S = 3600.0  # a large model from a slow disk takes its time
_ANSWER_S = 10.0  # of one request to the server
_END_S = 30.0
_SETTLE_S = 1.0  # after the start, for what the interpreters give back
_PROBE_S = 0.002
_LARGEST_LOG = 1 << 16  # bytes of what the server says that are kept


@dataclass(frozen=True)
class Phase:
    """A phase of a start: of which process, and when it ended in seconds since the command."""

    process: str
    name: str
    end_s: float


@dataclass(frozen=True)
class Start:
    """One start: seconds to the first /health of 200, the phases, and bytes of memory of all processes, shared pages
    counted once."""

    ready_s: float
    phases: tuple[Phase, ...]
    idle_bytes: int | None


def measure_start(model: str | None, flags: Sequence[str] = ()) -> Start:
    """Serve `model` (None: the built-in one) with these flags on a free port of this machine, and end it again. Raises
    PeerError with the server's last words when it does not start, or does not answer."""
    command = [sys.executable, "-m", "homenode", "serve", *([model] if model else []), "--port", "0", *flags]
    begin = time.monotonic()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        url = _url_of(process, begin + _START_S)
        while not _is_healthy(url):
            if time.monotonic() - begin > _START_S:
                raise PeerError(f"the server at {url} did not become healthy within {_START_S:g} s")
            time.sleep(_PROBE_S)
        ready = time.monotonic() - begin
        time.sleep(_SETTLE_S)
        return Start(ready, phases_in(_read(f"{url}/metrics")), _idle_bytes(process.pid))
    finally:
        end_process(process, _END_S)
        assert process.stderr is not None  # a pipe
        process.stderr.close()


def phases_in(metrics: str) -> tuple[Phase, ...]:
    """The phases that a server's /metrics tell, in the order of their ends."""
    found = [(dict(_LABEL.findall(labels)), float(value)) for labels, value in _PHASE.findall(metrics)]
    phases = (Phase(labels.get("process", ""), labels.get("phase", ""), end) for labels, end in found)
    return tuple(sorted(phases, key=lambda phase: phase.end_s))


def median_of(starts: Sequence[Start]) -> Start:
    """Return of each figure of several starts the median. A phase counts that every start has."""
    ends: dict[tuple[str, str], list[float]] = {}
    for start in starts:
        for phase in start.phases:
            ends.setdefault((phase.process, phase.name), []).append(phase.end_s)
    phases = [
        Phase(process, name, statistics.median(seen))
        for (process, name), seen in ends.items()
        if len(seen) == len(starts)
    ]
    idle = [start.idle_bytes for start in starts if start.idle_bytes is not None]
    return Start(
        statistics.median(start.ready_s for start in starts),
        tuple(sorted(phases, key=lambda phase: phase.end_s)),
        int(statistics.median(idle)) if idle else None,
    )


def durations(phases: Sequence[Phase]) -> list[tuple[Phase, float]]:
    """Each phase with the seconds since the phase before it of the same process, the command being the beginning of
    all."""
    last: dict[str, float] = {}
    found = []
    for phase in sorted(phases, key=lambda each: each.end_s):
        found.append((phase, phase.end_s - last.get(phase.process, 0.0)))
        last[phase.process] = phase.end_s
    return found


def _url_of(process: subprocess.Popen[bytes], deadline: float) -> str:
    """Return what the server says it is ready at."""
    assert process.stderr is not None  # a pipe
    descriptor, said = process.stderr.fileno(), b""
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([descriptor], [], [], left)[0]:
            break
        piece = os.read(descriptor, _LARGEST_LOG)
        said = (said + piece)[-_LARGEST_LOG:]
        if found := _URL.search(said):
            return found[1].decode()
        if not piece:
            words = " ".join(said.decode(errors="replace").split())[-500:]
            raise PeerError(f"the server ended with exit code {process.wait(_END_S)}: {words}")
    raise PeerError(f"the server was not ready within {_START_S:g} s")


def _is_healthy(url: str) -> bool:
    try:
        _read(f"{url}/health")
    except PeerError:
        return False
    return True


def _read(url: str) -> str:
    """The body of the answer, as text. Raises PeerError when there is none, or it is no 200."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is this machine
    try:
        with opener.open(url, timeout=_ANSWER_S) as answer:
            body: bytes = answer.read()
            return body.decode(errors="replace")
    except (urllib.error.URLError, OSError) as error:
        raise PeerError(f"{url} did not answer: {error}") from error


def _idle_bytes(pid: int) -> int | None:
    """Memory of a process and those it has started: proportional, so that what several share counts once. None where
    the kernel does not tell."""
    total = 0
    for each in (pid, *descendants(pid)):
        size = pss_bytes(each)
        if size is None:
            return None
        total += size
    return total
