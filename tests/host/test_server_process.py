"""The process of a measured server: asked to end, killed if it does not, and its memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from homenode.bench.serving.server_process import end_process, pss_bytes

_CODE = "import signal, sys, time; signal.signal(signal.SIGTERM, {handler}); print(flush=True); time.sleep(600)"


@contextmanager
def server(handler: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has this handler for SIGTERM."""
    command = [sys.executable, "-S", "-c", _CODE.format(handler=handler)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def test_a_server_that_ends_when_asked_is_not_killed() -> None:
    with server("lambda *_: sys.exit(7)") as process:
        assert end_process(process, 30) == 7


def test_a_server_that_does_not_end_is_killed() -> None:
    with server("signal.SIG_IGN") as process:
        assert end_process(process, 0.05) == -signal.SIGKILL


def test_a_server_that_has_ended_is_no_fault() -> None:
    with server("signal.SIG_DFL") as process:
        process.kill()
        process.wait()
        assert end_process(process, 30) == -signal.SIGKILL
        assert pss_bytes(process.pid) is None, "it has no memory any more"


def test_memory_is_that_of_the_process() -> None:
    size = pss_bytes(os.getpid())
    assert size is None or 1 << 20 < size < 1 << 40, "a Python interpreter, where the kernel tells"
