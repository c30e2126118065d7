"""What formats say about how their calls are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from homenode.chat.grammars.lark import LarkWriter
from homenode.chat.grammars.parameters import CallableTool


@dataclass(frozen=True)
class CallBegin:
    """Where a call begins: at the mark `text`, or, where that is empty, at what the regular expression `pattern` matches
    at the beginning of a line. `rest` is a rule body: what follows.
    """

    rest: str
    text: str = ""
    pattern: str = ""


@dataclass(frozen=True)
class CallForms:
    """How calls are written: in one of the ways `begins`. `separator`: a rule body, what is between two of them where an
    answer may have several and nothing but calls; None where one of them has all calls. `excluded`: regular expressions
    of what begins calls, which content therefore does not have; `excluded_on_new_line`: not at the beginning of a line.
    """

    begins: Sequence[CallBegin]
    separator: str | None = None
    excluded: Sequence[str] = ()
    excluded_on_new_line: Sequence[str] = ()


class CallWriter:
    """What formats write their calls with."""

    def __init__(self, lark: LarkWriter, tools: Sequence[CallableTool], *, parallel: bool) -> None:
        self.lark, self.tools, self.parallel = lark, tools, parallel

    def arguments(self, tool: CallableTool) -> str:
        """A rule for the arguments of a tool as a JSON object."""
        return self.lark.json(tool.schema)

    def any_of(self, bodies: Sequence[str]) -> str:
        """The name of a rule that is one of several bodies."""
        return self.lark.rule(" | ".join(bodies))


DescribeCalls = Callable[[CallWriter], CallForms]
