"""How the command line speaks: results to stdout, everything else to stderr, errors as one sentence and an exit code.

`OUT` and `ERR` are made when they are first asked for: rich takes longer to import than many a command takes to run.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from homenode.errors import HomenodeError, HostError, InternalError, PlacementError, UserError

if TYPE_CHECKING:
    from rich.console import Console

    OUT: Console
    ERR: Console


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # of a file that the output goes to


def __getattr__(name: str) -> Any:
    if name not in ("OUT", "ERR"):
        raise AttributeError(name)
    from rich.console import Console

    globals()[name] = Console(stderr=name == "ERR", soft_wrap=True)
    return globals()[name]


def exit_code(error: HomenodeError) -> int:
    """2 for what the user can mend, 70 (EX_SOFTWARE of sysexits.h) for our bugs, 1 for the rest."""
    if isinstance(error, UserError):
        return 2
    return 70 if isinstance(error, InternalError) else 1


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn our errors into one line on stderr and an exit code; never a traceback for what a user can mend."""
    try:
        yield
    except HomenodeError as error:
        print_error(error)
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(141)
    except OSError as error:
        if error.errno not in _NO_ROOM or error.filename is not None:
            raise
        _discard_output()
        print_error(HostError(f"the output cannot be written: {error.strerror}"))
        sys.exit(1)


def _discard_output() -> None:
    """What is still to be written goes nowhere: the interpreter would try once more at its end, and end with a traceback."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def print_error(error: HomenodeError) -> None:
    """One line on stderr, if that can be written."""
    from rich.text import Text

    from homenode.cli.report import ERR

    with suppress(OSError):
        ERR.print(Text.assemble(("homenode: error: ", "bold red"), error.message), highlight=False)


def print_json(value: Any) -> None:
    """One JSON object on one line of stdout."""
    sys.stdout.write(json.dumps(value) + "\n")


@contextmanager
def json_errors(as_json: bool) -> Iterator[None]:
    """Like `plain_errors`; with `as_json` the error is also one JSON object on stdout, for programs."""
    with plain_errors():
        try:
            yield
        except HomenodeError as error:
            if as_json:
                print_json({"error": _error_dict(error)})
            raise


def _error_dict(error: HomenodeError) -> dict[str, str]:
    if isinstance(error, PlacementError):
        return error.to_dict()
    code = "bad_input" if isinstance(error, UserError) else "host_refused"
    return {"code": code, "message": error.message, "seen": "", "wanted": "", "remedy": ""}


@contextmanager
def loading_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar for weights: yields a function (bytes done, bytes in all). Shown only on a terminal."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from homenode.cli.report import ERR

    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=ERR, transient=True, disable=not ERR.is_terminal) as progress:
        task = progress.add_task(what, total=None)

        def update(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield update
