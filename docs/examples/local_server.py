"""A server of the built-in model for as long as an example needs it: what the other examples start and stop.

A server with port 0 takes a free port and prints it in a line of its log, `ready http://127.0.0.1:PORT ...`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

START_S = 120.0
END_S = 30.0
# The command `homenode` of the Python that runs this, so that no PATH need be set.
HOMENODE = [sys.executable, "-m", "homenode"]


@contextmanager
def serving(*flags: str, command: str = "serve") -> Iterator[httpx.Client]:
    """A client of `homenode COMMAND FLAGS`, which is ended afterwards.

    Without flags any server of the built-in model will do: the one at EXAMPLE_URL, where that variable is set.
    """
    if not flags and os.environ.get("EXAMPLE_URL"):
        with httpx.Client(base_url=os.environ["EXAMPLE_URL"], timeout=START_S) as client:
            yield client
        return
    process = subprocess.Popen([*HOMENODE, command, "--port", "0", *flags], stderr=subprocess.PIPE, text=True)
    watch = threading.Timer(START_S, process.kill)
    watch.start()
    try:
        url, log = ready_url(process)
        watch.cancel()
        if not url:
            raise SystemExit(f"the server did not start within {START_S:g} s:\n{log}")
        threading.Thread(target=process.stderr.read, daemon=True).start()  # a full pipe would stop the server
        with httpx.Client(base_url=url, timeout=START_S) as client:
            yield client
    finally:
        watch.cancel()
        process.terminate()  # this process alone: it lets running answers end, and ends its own children
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def ready_url(process: subprocess.Popen[str]) -> tuple[str, str]:
    """The address that a server (`ready URL`) or a proxy (`listening URL`) logs, "" if it ends without; and the log."""
    seen: list[str] = []
    for line in process.stderr:
        seen.append(line)
        if found := re.search(r"(?:ready|listening) (http://\S+)", line):
            return found[1], "".join(seen)
    return "", "".join(seen)
