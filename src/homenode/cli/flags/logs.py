"""`--log-level` and `--verbose`: what of the log is written, of every command that serves or computes."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from homenode.cli.flags.settings import build, with_some_settings
from homenode.logs.forms import FORMATS, TEXT
from homenode.logs.setup import LEVEL_VARIABLE, LEVELS, begin_command_log
from homenode.options import option, options_of


@dataclass(frozen=True)
class LogConfig:
    """The part of the log that is written."""

    log_level: str | None = option(
        None,
        "Least severe lines of the log that are written. Default: info of serve, proxy and run, warning of "
        "other commands. Processes that are started inherit it.",
        choices=LEVELS,
    )
    verbose: bool = option(
        False,
        "The same as --log-level debug; it tells how weights and KV memory lie on each NUMA node, and how weights are "
        "mirrored or sharded.",
    )

    @property
    def level(self) -> str | None:
        """The level that was asked for; None where none was."""
        return "debug" if self.verbose else self.log_level


@dataclass(frozen=True)
class ServiceLogConfig(LogConfig):
    """The part of a service's log that is written, and what its lines look like."""

    log_format: str = option(
        TEXT,
        "Form of the lines of the log: text, or json, an object a line, with the ids of requests. Processes that are "
        "started inherit it.",
        choices=FORMATS,
    )


def taken_level(values: dict[str, Any]) -> str | None:
    """The level that a command's flags ask for; they are taken out of `values`."""
    config: LogConfig = build(LogConfig, {name: values.pop(name) for name in options_of(LogConfig)})
    return config.level


def with_log_flags(command: Any) -> Any:
    """Decorator for a click command: adds the flags."""
    return with_some_settings(LogConfig, *options_of(LogConfig))(command)


def with_command_log(function: Callable[..., Any]) -> Any:
    """Decorator for a click command that ends by itself: adds the flags, and begins the log before the command does."""

    @functools.wraps(function)
    def logging_function(*arguments: Any, **values: Any) -> Any:
        begin_command_log(taken_level(values))
        return function(*arguments, **values)

    return with_log_flags(logging_function)


def lines_from(level: str | None, write: Callable[[str], None]) -> Callable[[str], None]:
    """`write` of lines that are at least so severe, for a command that becomes another program and so keeps no log.

    A line begins with its severity and a colon, else it is of level info. `level`: None for info. What is started
    inherits a level that is given.
    """
    if level is not None:
        os.environ[LEVEL_VARIABLE] = level
    least = LEVELS.index(level or "info")

    def say_some(line: str) -> None:
        severity = line.partition(":")[0]
        if LEVELS.index(severity if severity in LEVELS else "info") >= least:
            write(line)

    return say_some
