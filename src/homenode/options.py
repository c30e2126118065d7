"""A setting is declared once: the field of a frozen dataclass carries what the flag, the variable and the docs line
need.

    @dataclass(frozen=True)
    class SchedulerConfig:
        max_num_seqs: int = option(128, "Most sequences in one step.", minimum=1)

gives `--max-num-seqs`, `HOMENODE_MAX_NUM_SEQS`, the TOML key `max-num-seqs` and the line in the settings table. The
command line is built from these in `homenode.cli.flags.settings`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Option:
    """The facts that a setting's surfaces need to know. `parse` turns the text of a flag or variable into the value
    (raising UserError).
    """

    help: str
    parse: Callable[[str], Any] | None = None
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    metavar: str | None = None
    flag: str | None = None  # only where it is not the field's name with dashes
    secret: bool = False  # never printed


def is_empty_secret(declared: Option, value: Any) -> bool:
    """Return whether `value`, or one of several values, of a secret setting is empty: as a key it would let everybody
    in.
    """
    return declared.secret and not all(
        str(text).strip() for text in (value if isinstance(value, tuple | list) else (value,))
    )


EMPTY_SECRET = "an empty key would let everybody in; give a text, or leave this setting out (is a variable unset?)"


def option(default: Any, help: str, **rest: Any) -> Any:
    """A dataclass field with `default` and the `Option` built from the remaining arguments."""
    metadata = {"option": Option(help, **rest)}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def options_of(config: type[Any]) -> dict[str, tuple[dataclasses.Field[Any], Option]]:
    """The declared settings of a config class, by field name, in order."""
    return {f.name: (f, f.metadata["option"]) for f in dataclasses.fields(config) if "option" in f.metadata}
