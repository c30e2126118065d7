"""`--log-level` and `--verbose`: what of the log is written, of every command that serves or computes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from homenode.cli.options import build, with_some_settings
from homenode.logs.setup import LEVELS, begin_command_log
from homenode.options import option, options_of


@dataclass(frozen=True)
class LogConfig:
    """What of the log is written."""

    log_level: str | None = option(
        None,
        "Least severe lines of the log that are written. Default: info of what serves, warning of other commands. "
        "Processes that are started inherit it.",
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


def with_command_log(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator for a click command that ends by itself: adds the flags, and begins the log before the command does."""

    @functools.wraps(function)
    def logging_function(*arguments: Any, **values: Any) -> Any:
        begin_command_log(build(LogConfig, {name: values.pop(name) for name in options_of(LogConfig)}).level)
        return function(*arguments, **values)

    return with_some_settings(LogConfig, *options_of(LogConfig))(logging_function)
