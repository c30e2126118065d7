"""Run one command in a guest: start it, or go on from a saved machine, and bring back what the command wrote. Guests
end with this process.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tools.lab.arm64 import SITE
from tools.lab.folder import ROOT, LabError, LabFolder
from tools.lab.monitor import READY, Console, Monitor
from tools.lab.qemu import Share, command, identity
from tools.lab.topologies import Topology

BOOT_S = 900.0  # on a host that is busy with many other things; alone it takes 2 to 5 seconds
_POWER_OFF_S = 3.0  # that a guest may take once its command has ended
_LOOK_S = 0.25  # between two looks at the output of a running command
_DATA = ROOT.parent / "shared" / "data"  # inputs of tests, which a clone may lack
_ARM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Outcome:
    """`code`: of the command, None when the guest ended or was ended without one. Files that the command left in
    /run/lab are in `files`.

    `cpu_seconds`: that the emulator used, about what all of it takes on a host with a core to spare.
    """

    code: int | None
    out: str
    err: str
    console: str
    seconds: float
    timed_out: bool
    files: Mapping[str, bytes]
    cpu_seconds: float = 0.0

    @property
    def trouble(self) -> str:
        """The last lines of everything, for a person."""
        parts = {"output": self.out, "errors": self.err, "console": self.console}
        told = "deadline passed; " if self.timed_out else ""
        return (
            told
            + f"exit code {self.code}\n"
            + "\n".join(f"--- {name}\n{text[-3000:]}" for name, text in parts.items() if text.strip())
        )


@dataclass(frozen=True, slots=True)
class Guest:
    """A machine to be started any number of times, each time as new."""

    topology: Topology
    arch: str
    folder: LabFolder

    def run(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        seconds: float,
        watch: Callable[[str], None] | None = None,
    ) -> Outcome:
        """Run a command in the repository's folder. `watch` is told its output so far, now and then.

        Raises LabError where qemu does not start or the guest does not come up.
        """
        began = time.monotonic()
        out = Path(tempfile.mkdtemp(prefix="homenode-lab-"))
        try:
            _write_command(out, words, {**self._path(), **environment})
            with self._started(self._shares(out)) as (process, console):
                timed_out, cpu_seconds = _wait(process, out, seconds, watch)
                text = console.text
            return replace(_outcome(out, text, time.monotonic() - began, timed_out), cpu_seconds=cpu_seconds)
        finally:
            shutil.rmtree(out, ignore_errors=True)

    def _shares(self, out: Path) -> tuple[Share, ...]:
        if self.arch == "x86_64":
            return (Share("root", Path("/")), Share("out", out, False))
        (out / "tree").write_text(str(ROOT))
        if _DATA.is_dir():
            (out / "data").write_text(str(_DATA))
        shares = (
            Share("root", self.folder.arm_root),
            Share("out", out, False),
            Share("tree", ROOT),
            Share("native", self.folder.arm_package),
        )
        return (*shares, Share("data", _DATA.resolve())) if _DATA.is_dir() else shares

    def _path(self) -> dict[str, str]:
        """Where programs and packages are: the host's own in guests whose root it is."""
        if self.arch == "x86_64":
            return {
                "PATH": os.environ["PATH"],
                "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT)))),
            }
        return {"PATH": _ARM_PATH, "PYTHONPATH": f"/{SITE}:{ROOT / 'src'}:{ROOT}"}

    @contextmanager
    def _started(self, shares: tuple[Share, ...]) -> Iterator[tuple[subprocess.Popen[bytes], Console]]:
        """The guest at its command. Saved the first time it is ready, where it can be."""
        saved = self._saved_file(shares)
        known = saved is not None and saved.exists()
        (console, theirs), (monitor, other) = socket.socketpair(), socket.socketpair()
        with console, monitor:
            with theirs, other:
                kernel, archive = self.folder.kernel(self.arch), self.folder.initramfs(self.arch)
                numbers = (theirs.fileno(), other.fileno())
                words = command(self.topology, self.arch, kernel, archive, shares, *numbers, saved if known else None)
                process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=numbers
                )
            try:
                reading = Console(console)
                self._bring_up(process, Monitor(monitor, BOOT_S), reading, saved, known)
                yield process, reading
            except LabError as error:
                process.kill()
                said = process.stdout.read().decode(errors="replace") if process.stdout else ""
                raise LabError(
                    f"guest {self.topology.name} on {self.arch}: {error}\n{said}\n{reading.text[-2000:]}".strip()
                ) from None
            finally:
                process.kill()
                process.wait()
                if process.stdout:
                    process.stdout.close()

    def _bring_up(
        self, process: subprocess.Popen[bytes], monitor: Monitor, console: Console, saved: Path | None, known: bool
    ) -> None:
        deadline = time.monotonic() + BOOT_S
        if known:
            monitor.resume(deadline)
        elif not console.wait_for(READY, deadline):
            raise LabError("did not come up" if process.poll() is None else "qemu ended early")
        elif saved is not None:
            fresh = saved.with_name(f"{saved.name}.{os.getpid()}")
            monitor.save(fresh, deadline)
            fresh.rename(saved)
            monitor.resume(deadline)
        console.say("go")

    def _saved_file(self, shares: tuple[Share, ...]) -> Path | None:
        if not self.topology.savable:
            return None
        program = shutil.which(f"qemu-system-{self.arch}") or ""
        files = (Path(program), self.folder.kernel(self.arch), self.folder.initramfs(self.arch))
        versions = {file.name: (file.stat().st_size, file.stat().st_mtime_ns) for file in files}
        self.folder.saved.mkdir(parents=True, exist_ok=True)
        name = identity(self.topology, self.arch, tuple(share.tag for share in shares), versions)
        for old in self.folder.saved.glob(f"{self.arch}-{self.topology.name}-*"):
            if old.name != f"{self.arch}-{self.topology.name}-{name}":
                old.unlink(missing_ok=True)
        return self.folder.saved / f"{self.arch}-{self.topology.name}-{name}"


def _write_command(out: Path, words: Sequence[str], environment: Mapping[str, str]) -> None:
    lines = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    lines += [f"cd {shlex.quote(str(ROOT))}", f"exec {shlex.join(words)}", ""]
    (out / "command.sh").write_text("\n".join(lines))
    (out / "now").write_text(str(int(time.time()) + 1))


def _wait(
    process: subprocess.Popen[bytes], out: Path, seconds: float, watch: Callable[[str], None] | None
) -> tuple[bool, float]:
    """Until the guest powers off: whether it had to be ended instead, and the CPU seconds it had used when last looked
    at.
    """
    deadline, used, done_at = time.monotonic() + seconds, 0.0, None
    while time.monotonic() < deadline:
        used = _cpu_seconds(process.pid) or used
        if done_at is None and _read(out / "code"):
            done_at = time.monotonic()
        if done_at is not None and time.monotonic() > done_at + _POWER_OFF_S:
            process.kill()  # all it had to say is said; some kernels do not come to the end of powering off
            return False, used
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_S)
            return False, used
        if watch is not None:
            watch(_read(out / "stdout"))
    process.kill()
    return True, used


def _cpu_seconds(pid: int) -> float:
    """Of a process and its threads so far (proc_pid_stat(5)); 0 when it has ended."""
    words = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK") if len(words) > 12 else 0.0


def _outcome(out: Path, console: str, seconds: float, timed_out: bool) -> Outcome:
    known = {"command.sh", "now", "tree", "data", "stdout", "stderr", "code"}
    files = {file.name: file.read_bytes() for file in out.iterdir() if file.is_file() and file.name not in known}
    code = _read(out / "code").strip()
    return Outcome(
        int(code) if code else None, _read(out / "stdout"), _read(out / "stderr"), console, seconds, timed_out, files
    )


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except FileNotFoundError:
        return ""
