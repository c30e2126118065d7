"""Runs a command that takes minutes: its output goes to a file, and how far it is to whoever waits."""

from __future__ import annotations

import re
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tools.wheels.targets import WheelError

_COUNT = re.compile(r"^\s*\[(\d+)/(\d+)\] Building")  # how Ninja tells what it is at
_EVERY_S = 15.0
_LINES = 30  # of the output, that a failure shows


def time_left(done: int, of: int, seconds: float) -> str:
    """About how long `of - done` more things take if `done` of them took these seconds."""
    left = seconds / done * (of - done)
    return f"about {max(1, round(left / 60))} minutes left" if left >= 90 else f"about {max(1, round(left))} s left"


def run(
    command: Sequence[str | Path],
    log: Path,
    tell: Callable[[str], None],
    environment: Mapping[str, str],
    folder: Path,
    deadline_s: float = 3600.0,
) -> None:
    """Run the command in `folder`, its output into `log`; `tell` gets a line every 15 seconds while files are being
    compiled. WheelError, with the end of the output, where it fails or is not done in `deadline_s` seconds.
    """
    begin = told = time.monotonic()
    first: tuple[int, float] | None = None
    last: deque[str] = deque(maxlen=_LINES)
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("w", buffering=1, encoding="utf-8") as out,
        subprocess.Popen(
            [str(word) for word in ("timeout", f"{deadline_s:.0f}", *command)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=dict(environment),
            cwd=folder,
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            out.write(line)
            last.append(line)
            now = time.monotonic()
            if (count := _COUNT.match(line)) is None:
                continue
            done, of = int(count[1]), int(count[2])
            first = first or (done - 1, now)
            if now - told >= _EVERY_S:
                told = now
                tell(f"{done} of {of} files compiled, {time_left(done - first[0], of - first[0], now - first[1])}")
    if process.returncode == 124:
        raise WheelError(f"not done in {deadline_s:.0f} s: {command[0]} (all it said: {log})\n{''.join(last)}")
    if process.returncode:
        raise WheelError(
            f"{Path(command[0]).name} ended with {process.returncode} (all it said: {log})\n{''.join(last)}"
        )
    tell(f"done in {time.monotonic() - begin:.0f} s")
