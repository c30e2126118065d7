"""The sources that facts come from: the live machine or a recording of one. The only door to /sys, /proc and the
vendors' tools.

A source answers three questions: what is in a file, what is in a folder, what does a command print. Everything else on
this floor is parsing.
"""

from __future__ import annotations

import os
import platform
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from homenode.host.topology.accelerator_kinds import KINDS

COMMAND_DEADLINE_S = 10.0
_END_S = 0.5  # how long a killed tool may take to be gone
_MOST_OUTPUT = 16 << 20  # bytes of a vendor tool's output that are looked at
_MOST_ERRORS = 1 << 16  # bytes of its standard error that are kept; what comes after is read and dropped
_MOST_TEXT = 8 << 20  # bytes of a file: /proc/interrupts of a machine with thousands of CPUs has a few
_PIECE = 1 << 16  # bytes asked of a file at once
_C_LOCALE = {"LC_ALL": "C", "LANG": "C", "LC_MESSAGES": "C"}

# The variables that placement depends on. No other is ever read or recorded.
VARIABLES = (
    *dict.fromkeys(variable for kind in KINDS.values() for variable in kind.variables),
    "CUDA_DEVICE_ORDER",
    "ZE_AFFINITY_MASK",
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "SLURM_CPU_BIND",
    "SLURM_CPU_BIND_TYPE",
    "SLURM_LOCALID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "LOCAL_RANK",
    "VLLM_CPU_OMP_THREADS_BIND",
    "VLLM_CPU_NUM_OF_RESERVED_CPU",
    "VLLM_CPU_KVCACHE_SPACE",
    "CPU_VISIBLE_MEMORY_NODES",
    "HOMENODE_CPU_THREADS_BIND",
    "HOMENODE_RESERVE_CPUS",
    "HOMENODE_MEMORY_NODES",
    "HOMENODE_VLLM_VERSION",
)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The text that a command printed to standard output, and how it ended. `failure`: "" | "missing" | "timeout" |
    "failed" (exit code `rc`).

    `err`: the beginning of what a failed one printed to standard error, for messages.
    """

    out: str
    rc: int = 0
    failure: str = ""
    err: str = ""


class Source(Protocol):
    """A machine to read. Paths are absolute, as on the machine itself."""

    @property
    def machine(self) -> str:
        """`uname -m`: x86_64, aarch64, ppc64le, ..."""
        ...

    @property
    def env(self) -> Mapping[str, str]:
        """The variables of VARIABLES that are set."""
        ...

    def read(self, path: str) -> str | None:
        """Text of a file without surrounding white space and NULs; None when it cannot be read."""
        ...

    def names(self, folder: str) -> Sequence[str]:
        """Names in a folder, sorted; empty when there is no such folder."""
        ...

    def command(self, words: Sequence[str]) -> CommandResult:
        """Run a vendor's tool (read only, in the C locale, with a deadline) and say what came. Never raises."""
        ...


class LiveSource:
    """The machine this runs on. `root` stands in for `/` in tests; the process itself is always the calling one."""

    def __init__(
        self, root: str = "/", env: Mapping[str, str] | None = None, command_deadline_s: float = COMMAND_DEADLINE_S
    ) -> None:
        self._root = root.rstrip("/")
        given = os.environ if env is None else env
        self._env = {name: given[name] for name in VARIABLES if name in given}
        self._deadline_s = command_deadline_s

    @property
    def machine(self) -> str:
        return platform.machine()

    @property
    def env(self) -> Mapping[str, str]:
        return self._env

    def read(self, path: str) -> str | None:
        try:
            return _clean(_read_bytes(self._root + path).decode("utf-8", "replace"))
        except (OSError, ValueError):  # a path with a NUL in it
            return None

    def names(self, folder: str) -> Sequence[str]:
        try:
            return sorted(os.listdir(self._root + folder))  # noqa: PTH208 - names are wanted, not a Path for each of thousands
        except (OSError, ValueError):
            return ()

    def command(self, words: Sequence[str]) -> CommandResult:
        if shutil.which(words[0]) is None:
            return CommandResult("", 127, "missing")
        try:
            return _run(words, self._deadline_s)
        except OSError:
            return CommandResult("", 127, "missing")


@dataclass
class RecordedSource:
    """A machine as it was: texts of files by path, outputs of commands by command line."""

    machine: str
    files: Mapping[str, str]
    commands: Mapping[str, CommandResult] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._folders: dict[str, set[str]] = {}
        known: set[str] = set()
        for path in self.files:
            while path not in known and (cut := path.rfind("/")) >= 0:
                known.add(path)
                folder, name = path[:cut], path[cut + 1 :]
                self._folders.setdefault(folder, set()).add(name)
                path = folder

    def read(self, path: str) -> str | None:
        text = self.files.get(path)
        return None if text is None else _clean(text)

    def names(self, folder: str) -> Sequence[str]:
        return sorted(self._folders.get(folder.rstrip("/"), ()))

    def command(self, words: Sequence[str]) -> CommandResult:
        return self.commands.get(" ".join(words), CommandResult("", 127, "missing"))


class RecordingSource:
    """Passes every question on to another source and remembers the answers, so that they can be given again."""

    def __init__(self, inner: Source) -> None:
        self._inner = inner
        self.files: dict[str, str] = {}
        self.folders: dict[str, Sequence[str]] = {}
        self.commands: dict[str, CommandResult] = {}

    @property
    def machine(self) -> str:
        return self._inner.machine

    @property
    def env(self) -> Mapping[str, str]:
        return self._inner.env

    def read(self, path: str) -> str | None:
        text = self._inner.read(path)
        if text is not None:
            self.files[path] = text
        return text

    def names(self, folder: str) -> Sequence[str]:
        names = self._inner.names(folder)
        self.folders[folder.rstrip("/")] = names
        return names

    def command(self, words: Sequence[str]) -> CommandResult:
        result = self._inner.command(words)
        if result.failure != "missing":
            self.commands[" ".join(words)] = result
        return result


def _read_bytes(path: str) -> bytes:
    """At most _MOST_TEXT bytes, piece by piece: files below /proc/sys answer a large read with ENOMEM, as the kernel
    sets up a buffer for all."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        pieces, size = [], 0
        while size < _MOST_TEXT and (piece := os.read(file, _PIECE)):
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)[:_MOST_TEXT]
    finally:
        os.close(file)


def _clean(text: str) -> str:
    # Some recorded trees pad files with NULs to the size that stat(2) gave.
    return text.strip("\0").strip() if "\0" in text else text.strip()


def _run(words: Sequence[str], deadline_s: float) -> CommandResult:
    """Run in a process group of its own, so that a tool that hangs, or never stops printing, is ended with all it
    started."""
    end = time.monotonic() + deadline_s
    child = subprocess.Popen(
        list(words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **_C_LOCALE},
        start_new_session=True,
        cwd=Path("/"),
    )
    assert child.stdout is not None and child.stderr is not None
    err = bytearray()
    try:
        with child.stdout, child.stderr:
            out = _output(child.stdout.fileno(), child.stderr.fileno(), err, end)
            if len(out) <= _MOST_OUTPUT:
                child.wait(max(0.0, end - time.monotonic()))
            _drain(child.stderr.fileno(), err)
    except (TimeoutError, subprocess.TimeoutExpired):
        return CommandResult("", -signal.SIGKILL, "timeout")
    finally:
        if child.returncode is None:
            _end(child)
    text = out[:_MOST_OUTPUT].decode("utf-8", "replace")
    rc = -signal.SIGKILL if child.returncode is None else child.returncode
    return CommandResult(text, rc, "failed", err.decode("utf-8", "replace")) if rc else CommandResult(text)


def _output(pipe: int, errors: int, err: bytearray, end: float) -> bytearray:
    """Return what comes through `pipe` until it is closed, or until one byte more than is looked at; what comes through
    `errors` meanwhile goes to `err`.

    Raises TimeoutError.
    """
    poll = select.poll()  # select(2) cannot watch descriptors above 1023, and a server has many
    poll.register(pipe, select.POLLIN)
    poll.register(errors, select.POLLIN)
    out = bytearray()
    while len(out) <= _MOST_OUTPUT:
        ready = {descriptor for descriptor, _ in poll.poll(max(0.0, end - time.monotonic()) * 1000)}
        if not ready or time.monotonic() > end:  # one that never stops complaining is ended as one that hangs
            raise TimeoutError
        if errors in ready and not _take_errors(errors, err):
            poll.unregister(errors)
        if pipe in ready:
            part = os.read(pipe, 1 << 16)
            if not part:
                break
            out += part
    return out


def _take_errors(pipe: int, err: bytearray) -> bool:
    """Read once and keep what there is room for. Whether there may be more."""
    part = os.read(pipe, 1 << 16)
    err += part[: max(0, _MOST_ERRORS - len(err))]
    return bool(part)


def _drain(pipe: int, err: bytearray) -> None:
    """Take what is in the pipe by now, without waiting for more: a child of the tool may hold it open."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while len(err) < _MOST_ERRORS and poll.poll(0) and _take_errors(pipe, err):
        pass


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill the whole group. A tool that is stuck inside its driver dies only when the driver lets go of it: it is not
    waited for."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(_END_S)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        pass
