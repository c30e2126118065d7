"""The voice of the command line: results to stdout, everything else to stderr, errors as one sentence and an exit code.

`OUT` and `ERR` are made when they are first asked for: rich takes longer to import than many a command takes to run.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from homenode.cli.output.text_encoding import undecodable_word
from homenode.errors import HomenodeError, HostError, InternalError, PlacementError, UserError
from homenode.host.refusals import exhausted

if TYPE_CHECKING:
    import click
    from rich.console import Console, RenderableType

    OUT: Console
    ERR: Console


COMMAND_WORDS = "homenode.words"  # in a context's meta: what was typed after the name of the program
# In a click context's meta, by the names of settings: which flag of another program was given for it, and which
# variable of another program says it, with the value; and lines about such settings that have no effect.
GIVEN_AS = "homenode.given-as"
VARIABLE_SETTINGS = "homenode.variable-settings"
TOLD = "homenode.told-of-equivalents"

_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]")
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
    except UnicodeEncodeError as error:
        if (told := undecodable_word(sys.argv)) is None or error.reason != "surrogates not allowed":
            raise
        print_error(told)
        sys.exit(2)
    except (MemoryError, RuntimeError, ImportError) as error:
        if (refusal := exhausted(error)) is None:
            raise
        print_error(refusal)
        sys.exit(1)
    except OSError as error:
        if error.errno not in _NO_ROOM or error.filename is not None:
            raise
        _discard_output()
        print_error(HostError(f"the output cannot be written: {error.strerror}"))
        sys.exit(1)


def _discard_output() -> None:
    """Let what is still to be written go nowhere: the interpreter would try once more at its end, and end with a
    traceback.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def show_controls(text: str) -> str:
    """`text` with its control characters written out (ESC as \\x1b), but for line ends and tabs.

    What comes out of a model's file or of a model may hold escapes that a terminal would obey.
    """
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or unicodedata.category(c) != "Cc" else repr(c)[1:-1] for c in text)


def print_fitted(shown: RenderableType) -> None:
    """Print lines and tables on stdout that fit the terminal (see `cli.output.fitted_text`); in a pipe lines stay
    whole."""
    from homenode.cli.output.report import OUT

    OUT.print(shown, soft_wrap=False, crop=False, highlight=False)


def print_piece(piece: str) -> None:
    """Print a piece of a model's answer on stdout; on a terminal without anything that the terminal would obey."""
    from homenode.cli.output.report import OUT

    OUT.print(show_controls(piece) if OUT.is_terminal else piece, end="", markup=False, highlight=False)


def print_labelled(label: str, text: str, **style: Any) -> None:
    """One line on stderr that begins with a label, which a terminal shows in `style` (as `click.style` has it). Without
    rich: whoever starts a server waits for what is imported before it is ready."""
    import click

    if sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        label = click.style(label, **style)
    sys.stderr.write(f"{label}{text}\n")
    sys.stderr.flush()


def print_note(text: str) -> None:
    """One line on stderr that an operator should read."""
    print_labelled("note: ", show_controls(text), fg="yellow")


def print_error(error: HomenodeError) -> None:
    """One line on stderr, if that can be written."""
    with suppress(OSError):
        print_labelled("homenode: error: ", show_controls(with_origins(error.message)), fg="red", bold=True)


def with_origins(message: str) -> str:
    """A message with where the flags that it names were set, of those that were not given on the command line.

    Who has set a variable years ago, or reads the flags of a service from a file, looks in vain for the flag otherwise.
    A flag that the command does not have is called by the variable that was read instead.
    """
    import click

    context = click.get_current_context(silent=True)
    if context is None:
        return message
    options = {opt: param for param in context.command.params for opt in (*param.opts, *param.secondary_opts)}
    origins = []
    for flag in dict.fromkeys(_FLAG.findall(message)):
        where = set_by(options[flag], context) if flag in options else _variable_of(flag)
        if where is None or where in message:
            continue
        if flag in options:
            origins.append(f"({flag} is set by {where}.)")
        else:
            message = re.sub(rf"{flag}(?![\w-])", where, message)
    return " ".join((message, *origins))


def _variable_of(flag: str) -> str | None:
    """The variable that is set of a placement setting."""
    from homenode.host.plan.variables import VARIABLES_OF

    return next((name for name in VARIABLES_OF.get(flag, ()) if os.environ.get(name)), None)


def set_by(param: click.Parameter, context: click.Context) -> str | None:
    """The variable, the file or the flag of another name that has given a parameter its value; None where none has."""
    from click.core import ParameterSource

    source = context.get_parameter_source(param.name or "")
    if source is ParameterSource.COMMANDLINE:
        given_as: str | None = context.meta.get(GIVEN_AS, {}).get(param.name)
        return given_as
    if source is ParameterSource.DEFAULT:
        return _variable_of(param.opts[0])
    if source is ParameterSource.DEFAULT_MAP:
        return "the file of --config"
    if source is not ParameterSource.ENVIRONMENT or not param.envvar:
        return None
    names = [param.envvar] if isinstance(param.envvar, str) else list(param.envvar)
    of_others: str = context.meta.get(VARIABLE_SETTINGS, {}).get(param.name, (names[0],))[0]
    return next((name for name in names if os.environ.get(name)), of_others)


def told_of_equivalents() -> tuple[str, ...]:
    """Lines about settings of other programs that were given to the running command and have no effect."""
    import click

    context = click.get_current_context(silent=True)
    return () if context is None else tuple(context.meta.get(TOLD, ()))


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


@contextmanager
def json_usage_errors() -> Iterator[None]:
    """The same for what click finds wrong with the words of a command line that asks for JSON: the object is there
    besides what click itself prints."""
    import click

    try:
        yield
    except click.UsageError as error:
        if error.ctx is not None and _asks_for_json(error.ctx):
            print_json({"error": _error_dict(UserError(error.format_message()))})
        raise


def _asks_for_json(context: click.Context) -> bool:
    """Return whether --json is among the words of the command that failed, which may not have been parsed
    to their end.
    """
    flags = {word for param in context.command.params for word in param.opts}
    words = context.meta.get(COMMAND_WORDS, [])
    return "--json" in flags and "--json" in (words[: words.index("--")] if "--" in words else words)


def _error_dict(error: HomenodeError) -> dict[str, str]:
    if isinstance(error, PlacementError):
        return error.to_dict()
    code = "bad_input" if isinstance(error, UserError) else "host_refused"
    return {"code": code, "message": error.message, "seen": "", "wanted": "", "remedy": ""}
