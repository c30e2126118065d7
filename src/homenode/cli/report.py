"""How the command line speaks: results to stdout, everything else to stderr, errors as one sentence and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.text import Text

from homenode.errors import HomenodeError, InternalError, UserError

OUT = Console(soft_wrap=True)
ERR = Console(stderr=True, soft_wrap=True)


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


def print_error(error: HomenodeError) -> None:
    """One line on stderr."""
    ERR.print(Text.assemble(("homenode: error: ", "bold red"), error.message), highlight=False)


@contextmanager
def loading_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar for weights: yields a function (bytes done, bytes in all). Shown only on a terminal."""
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    with Progress(*columns, console=ERR, transient=True, disable=not ERR.is_terminal) as progress:
        task = progress.add_task(what, total=None)

        def update(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield update
