"""The file with the key of blocks on disk."""

from __future__ import annotations

import os
import re
import stat

from homenode.errors import UserError

_DIGITS = re.compile(r"[0-9a-fA-F]{64}\s?\n?")
_MOST = 128


def read_key(path: str) -> bytes:
    """The 32 bytes of the key. UserError, which shows nothing of what the file holds, where there is none."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise _no_key(path, "it is no file")
            text = os.read(file, _MOST).decode("ascii", "replace")
        finally:
            os.close(file)
    except OSError as error:
        raise _no_key(path, f"it cannot be read: {error.strerror}") from error
    if not _DIGITS.fullmatch(text):
        raise _no_key(path, f"it holds {len(text.strip())} characters" if len(text) < _MOST else "it is longer")
    return bytes.fromhex(text.strip())


def _no_key(path: str, why: str) -> UserError:
    return UserError(
        f"--kv-disk-key {path}: {why}; wanted is a file with 64 hexadecimal digits (openssl rand -hex 32 > FILE)",
        param="kv_disk_key",
    )
