"""UTF-8 in and out, whatever the locale says.

Python takes the encoding of arguments, file names and output from the locale; one that knows ASCII alone (POSIX, where
Python's own way out of it is switched off) makes words of other languages something that can be neither understood nor
printed. Source: PEP 540 (Python's UTF-8 mode), PEP 538.
"""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from homenode.errors import UserError

_FOREIGN_PROGRAMS = "run"  # the command whose environment is that of somebody else's program


def use_utf8(arguments: Sequence[str]) -> None:
    """Have this process, and Python processes that it starts, read and write UTF-8. Where the locale knows ASCII alone
    the interpreter begins anew in its UTF-8 mode; other encodings keep their letters and write what they lack as
    escapes.
    """
    if sys.flags.utf8_mode:
        if not arguments or arguments[0] != _FOREIGN_PROGRAMS:
            os.environ["PYTHONUTF8"] = "1"
        return
    if _is_ascii(sys.getfilesystemencoding()) and sys.executable:
        with suppress(OSError):
            os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure") and codecs.lookup(stream.encoding or "ascii").name != "utf-8":
            stream.reconfigure(errors="backslashreplace")


def undecodable_word(arguments: Sequence[str]) -> UserError | None:
    """Return what to say of the first word of a command line that is no text in the locale's encoding;
    None: all are.
    """
    for word in arguments:
        if any("\udc80" <= character <= "\udcff" for character in word):
            shown = os.fsencode(word).decode("utf-8", "backslashreplace")
            encoding = sys.getfilesystemencoding()
            return UserError(
                f"the word {shown[:80]!r} of the command line is no text in {encoding}; give it in that encoding, or "
                "set a locale such as LC_ALL=C.UTF-8"
            )
    return None


def _is_ascii(encoding: str) -> bool:
    return codecs.lookup(encoding).name == "ascii"
