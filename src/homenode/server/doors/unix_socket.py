"""A listening unix socket: its permissions, what lies at its path already, and its removal."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import weakref
from pathlib import Path

from homenode.errors import UserError

_LONGEST = 107  # bytes of a path, of sockaddr_un
_ASKING_S = 1.0  # whether somebody listens at a path


class UnixListener(socket.socket):
    """A bound unix socket. Its file is there until `remove`, at the latest until this process ends."""

    def __init__(self, path: str, mode: int) -> None:
        """Raises UserError that names the path when it cannot be had."""
        if len(os.fsencode(path)) > _LONGEST:
            raise _wrong(path, f"is longer than the {_LONGEST} bytes that a unix socket's path may have")
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(self.fileno(), mode)  # the file is never there with more permissions than these
            _clear(path)
            self.bind(path)
            Path(path).chmod(mode)  # nor for long with fewer, which a umask leaves
            status = Path(path).stat()
        except OSError as error:
            self.close()
            raise _wrong(path, f"cannot be listened on ({error.strerror})") from error
        except UserError:
            self.close()
            raise
        identity = _identity(status)
        self.remove = weakref.finalize(self, _remove, Path(path).absolute(), identity)


def remove_socket_file(listener: socket.socket) -> None:
    """Remove the file of a unix socket, unless another server has put its own there. Nothing for other sockets."""
    if isinstance(listener, UnixListener):
        listener.remove()


def _clear(path: str) -> None:
    """Remove a socket that nobody listens on any more. Raises UserError for anything else at this path."""
    try:
        status = Path(path).lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise _wrong(path, "is there already and no socket; remove it, or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(_ASKING_S)
        try:
            asking.connect(path)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:
                Path(path).unlink()
                return
    raise _wrong(path, "is in use: another server listens there")


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    """Return what another socket at the same path does not have: numbers of inodes are used again, but not at the same
    time.
    """
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _remove(path: Path, identity: tuple[int, int, int]) -> None:
    with contextlib.suppress(OSError):
        status = path.lstat()
        if _identity(status) == identity:
            path.unlink()


def _wrong(path: str, what: str) -> UserError:
    return UserError(f"--uds {path} {what}", param="uds")
