"""The forms in which models write tool calls: one file each, found by scanning this folder.

A file has `FORMATS`, the formats it knows, each with the names for --tool-call-parser, what a chat template of such
models shows, and the generator that reads a message.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from homenode.chat.grammars.calls import DescribeCalls, DescribeMessage
from homenode.chat.syntax.reader import Reader
from homenode.chat.syntax.source import Reading


@dataclass(frozen=True)
class ToolFormat:
    """`names`: the first is the format's own, the others are taken as well. `signs`: texts in a chat template that show
    the format, each alternative a tuple of texts that must all be there; formats of a larger `precedence` are tried
    first. `marks`: what of the format's text may be special tokens of a model, whose text is not shown otherwise.
    `without_tools`: it also reads messages of requests that offer no tools, as content is marked up. `instruction`: how
    a model is told to write a call, where templates of such models leave that to the system message. `describe_calls`:
    how calls are written, for decoding that is bound to them. `write_calls`: the text of earlier calls, each a name and
    arguments, for templates that show none; by default a JSON object on a line for each.
    """

    names: tuple[str, ...]
    read: Callable[[Reader], Reading[None]]
    signs: tuple[tuple[str, ...], ...] = ()
    precedence: int = 0
    marks: tuple[str, ...] = ()
    without_tools: bool = False
    instruction: str = ""
    describe_calls: DescribeCalls | None = None
    describe_message: DescribeMessage | None = None
    write_calls: Callable[[Sequence[Mapping[str, Any]]], str] | None = None

    @property
    def name(self) -> str:
        """The format's own name."""
        return self.names[0]

    def sign_in(self, template: str) -> tuple[str, ...] | None:
        """The texts in a chat template by which the format is known, None where there are none."""
        return next((sign for sign in self.signs if all(text in template for text in sign)), None)


@functools.cache
def all_formats() -> tuple[ToolFormat, ...]:
    """Every format, those to be tried first in front."""
    found: list[ToolFormat] = []
    for module in sorted(info.name for info in pkgutil.iter_modules(__path__)):
        found += importlib.import_module(f"{__name__}.{module}").FORMATS
    return tuple(sorted(found, key=lambda known: -known.precedence))


@functools.cache
def formats_by_name() -> dict[str, ToolFormat]:
    """Formats by each of their names."""
    return {name: known for known in all_formats() for name in known.names}
