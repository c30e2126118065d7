"""The folder where commands of this host remember things for each other: claims, and what was before a binding. Small
JSON files.

Its place: HOMENODE_STATE_DIR; else the first that can be written to of $XDG_RUNTIME_DIR/homenode, /run/homenode for
root, and <temporary folder>/homenode-<user id>. Some of these outlive a reboot, so who keeps process numbers in a file
keeps `boot_id` with them. The folder is its user's alone (0700): two users do not see each other's claims.

It is a help: who only tells others something catches the HostError of `open_state`, which is raised for every reason
for which there can be none, and goes on without (`claims.exclusive_if_possible` does for claims).
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from homenode.errors import HostError, UserError
from homenode.host.bind.base.temporary import temporary_folders
from homenode.host.topology.finding import Finding

VARIABLE = "HOMENODE_STATE_DIR"
LOCK_DEADLINE_S = 10.0
_MOST_BYTES = 4 << 20  # of one file: some thousand claims or threads
_RETRY_S = 0.01
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Loaded:
    """The content of a file: None when there is none, or when it was damaged, which `findings` says then."""

    value: Any = None
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class State:
    """A state folder that has been checked. `name` is always a relative path inside it."""

    folder: Path

    def read(self, name: str) -> Loaded:
        """The JSON value of a file. One that is no JSON, or too large, counts as not there and gives a finding; it
        stays where it is."""
        file = self.folder / name
        try:
            # Without O_NONBLOCK a FIFO of that name would be waited for until somebody writes into it.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            with os.fdopen(os.open(file, flags), "rb") as opened:
                raw = opened.read(_MOST_BYTES + 1)
        except FileNotFoundError:
            return Loaded()
        except OSError as error:
            return Loaded(None, (_unreadable(file, error.strerror or str(error)),))
        if len(raw) > _MOST_BYTES:
            return Loaded(None, (_unreadable(file, f"it is larger than {_MOST_BYTES} bytes"),))
        try:
            return Loaded(json.loads(raw))
        except (ValueError, RecursionError) as error:
            return Loaded(None, (_unreadable(file, f"it is no JSON: {error}"),))

    def load(self, name: str) -> dict[str, Any] | None:
        """The JSON object of a file; None when there is none or it is damaged. For those to whom both are the same."""
        value = self.read(name).value
        return value if isinstance(value, dict) else None

    def names(self, folder: str) -> tuple[str, ...]:
        """Names of the files in a folder inside, sorted; none when there is no such folder."""
        try:
            return tuple(
                sorted(path.name for path in (self.folder / folder).iterdir() if not path.name.startswith("."))
            )
        except OSError:
            return ()

    def save(self, name: str, value: Any) -> None:
        """Replace a file in one step: who reads it at that moment sees the old or the new one, whole. Raises
        HostError."""
        file = self.folder / name
        try:
            file.parent.mkdir(mode=0o700, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
            try:
                with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
                    json.dump(value, opened)
                Path(temporary).replace(file)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise _refused(f"cannot write {file}", error) from error

    def remove(self, name: str) -> None:
        """Delete a file; one that is not there is no error."""
        with suppress(OSError):
            (self.folder / name).unlink()

    def put_aside(self, name: str) -> None:
        """Rename a damaged file to `name.damaged`, so that it can be looked at and does not stand in the way. Only for
        the holder of the lock."""
        with suppress(OSError):
            (self.folder / name).replace(self.folder / f"{name}.damaged")

    @contextmanager
    def locked(self, name: str, deadline_s: float = LOCK_DEADLINE_S) -> Iterator[None]:
        """Hold the lock called `name` alone; the kernel frees it when its holder ends, however it ends (flock(2)).

        Raises HostError when it is not free within `deadline_s` seconds.
        """
        file = self.folder / f"{name}.lock"
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _refused(f"cannot open the lock {file}", error) from error
        try:
            _wait_for_lock(descriptor, file, deadline_s)
            yield
        finally:
            os.close(descriptor)


def open_state(env: Mapping[str, str] | None = None, run_folder: Path = Path("/run")) -> State:
    """The state folder, made if need be.

    Raises UserError when HOMENODE_STATE_DIR names a folder that cannot be trusted, HostError, and nothing else, when
    there is none to be had, as where all file systems are read-only.
    """
    env = os.environ if env is None else env
    given = env.get(VARIABLE)
    if given:
        if not Path(given).is_absolute():
            raise UserError(f"{VARIABLE}={given}: not an absolute path", param=VARIABLE)
        return State(_prepare(Path(given)))
    refusals = []
    for folder in _candidates(env, run_folder):
        try:
            return State(_writable(_prepare(folder)))
        except (UserError, HostError) as error:
            refusals.append(error.message)
    refusals = refusals or ["no folder for temporary files can be written to"]
    raise HostError(f"there is no folder for the state: {'; '.join(refusals)}. Name one in {VARIABLE}.")


def boot_id() -> str:
    """Return what names this boot of the machine; empty where the kernel does not tell."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _candidates(env: Mapping[str, str], run_folder: Path) -> Iterator[Path]:
    runtime = env.get("XDG_RUNTIME_DIR", "")
    # Under sudo the variable may still name the folder of the user before: its owner decides, not the variable.
    if runtime.startswith("/") and _owner(Path(runtime)) == os.geteuid():
        yield Path(runtime) / "homenode"
    if os.geteuid() == 0:
        yield run_folder / "homenode"
    for temporary in temporary_folders(env):
        yield temporary / f"homenode-{os.geteuid()}"


def _owner(folder: Path) -> int | None:
    try:
        return folder.stat().st_uid
    except OSError:
        return None


def _prepare(folder: Path) -> Path:
    """Make the folder 0700 if it is not there, and make sure that nobody else can have put anything into it."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        seen = folder.lstat()
    except FileExistsError:
        raise UserError(f"{folder} is not a folder; remove it, or name another in {VARIABLE}", param=VARIABLE) from None
    except FileNotFoundError:
        raise UserError(
            f"there is no folder {folder.parent}; make it, or name another in {VARIABLE}", param=VARIABLE
        ) from None
    except OSError as error:
        raise _refused(f"cannot make the folder {folder}", error) from error
    if stat.S_ISLNK(seen.st_mode):
        raise UserError(f"{folder} is a link; name the folder itself in {VARIABLE}", param=VARIABLE)
    if seen.st_uid != os.geteuid():
        raise UserError(
            f"{folder} belongs to user {seen.st_uid}, not {os.geteuid()}; name a folder of your own in {VARIABLE}",
            param=VARIABLE,
        )
    if seen.st_mode & 0o022:
        raise UserError(
            f"others may write into {folder}; run `chmod go-w {folder}`, or name another in {VARIABLE}", param=VARIABLE
        )
    return folder


def _writable(folder: Path) -> Path:
    """The folder, if it is not on a file system that has become read-only, with what others left there before."""
    if os.access(folder, os.W_OK | os.X_OK):
        return folder
    raise HostError(f"{folder} cannot be written to")


def _wait_for_lock(descriptor: int, file: Path, deadline_s: float) -> None:
    end = time.monotonic() + deadline_s
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise HostError(
                    f"{file} is held by another command for over {deadline_s:g} s; `fuser {file}` names it. Try "
                    "again when it has ended."
                ) from None
            time.sleep(_RETRY_S)
        except OSError as error:
            raise _refused(f"cannot lock {file}", error) from error


def _unreadable(file: Path, why: str) -> Finding:
    return Finding(
        "warning",
        "state_unreadable",
        f"{file} is not used: {why}",
        f"Nothing to do if it does not come back; otherwise remove {file}.",
    )


def _refused(what: str, error: OSError) -> HostError:
    return HostError(f"{what}: {error.strerror}; name a folder that this user may write to in {VARIABLE}")
