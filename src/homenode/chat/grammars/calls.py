"""Descriptions by formats of how their calls are written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from homenode.chat.grammars.inputs import quoted_input
from homenode.chat.grammars.lark import LarkWriter, escape
from homenode.chat.grammars.parameters import CallableTool, ToolParameter
from homenode.errors import UserError


@dataclass(frozen=True)
class CallBegin:
    """The beginning of a call: at the mark `text`, or, where that is empty, at what the regular expression `pattern`
    matches at the beginning of a line. `rest` is a rule body: what follows.
    """

    rest: str
    text: str = ""
    pattern: str = ""


@dataclass(frozen=True)
class CallForms:
    """The forms in which calls are written: in one of the ways `begins`. `separator`: a rule body, what is between two
    of them where an answer may have several and nothing but calls; None where one of them has all calls. `excluded`:
    further texts that begin calls, which content therefore does not have; `excluded_on_new_line`: regular expressions
    for what it does not have at the beginning of a line.
    """

    begins: Sequence[CallBegin]
    separator: str | None = None
    excluded: Sequence[str] = ()
    excluded_on_new_line: Sequence[str] = ()


class CallWriter:
    """The tool that formats write their calls with."""

    def __init__(self, lark: LarkWriter, tools: Sequence[CallableTool], *, parallel: bool) -> None:
        self.lark, self.tools, self.parallel = lark, tools, parallel

    def arguments(self, tool: CallableTool) -> str:
        """A rule for the arguments of a tool as a JSON object."""
        if tool.input is None:
            return self.lark.json(tool.schema)
        name = escape(json.dumps(tool.input_parameter(tool.input).name, ensure_ascii=False))
        return self.lark.rule(rf'/\{{ ?{name}: ?/ {quoted_input(self.lark, tool.input)} "}}"')

    def any_of(self, bodies: Sequence[str]) -> str:
        """The name of a rule that is one of several bodies."""
        return self.lark.rule(" | ".join(bodies))

    def one_or_more(self, body: str, separator: str) -> str:
        """A rule body: `body` once, or several times where an answer may have several calls."""
        return f"{body} ({separator} {body})*" if self.parallel else body

    def parameters(self, tool: CallableTool, write: Callable[[ToolParameter], str], separator: str = "") -> str:
        """A rule for the parameters of a tool in their order, each as `write` has it."""
        lists = []
        for parameters in tool.parameter_lists():
            parts = [(self.lark.rule(write(parameter)), parameter.required) for parameter in parameters]
            lists.append(self.lark.ordered(parts, separator) or '""')
        return self.any_of(lists)


@dataclass(frozen=True)
class MessageParts:
    """The parts of a message, for formats that mark up all of it. `calls`: what calls are written with, None where
    none are bound. `must_call`: there is one. `content`: a rule for the text for the user, None where any will do.
    `budget`: how many tokens thoughts have at most.
    """

    lark: LarkWriter
    calls: CallWriter | None
    must_call: bool
    content: str | None
    budget: int | None


def parameter_name(tool: CallableTool, parameter: ToolParameter, allowed: re.Pattern[str]) -> str:
    """The name of a parameter where the format can write it, all of which `allowed` matches; UserError where not."""
    name = parameter.name
    if not allowed.fullmatch(name) or name != name.strip():
        named = f"the parameter {name[:100]!r} of {tool.name}"
        text = f"`tools`: {named} has a name that this model's form of calls has no way to write"
        raise UserError(text, param="tools")
    return name


DescribeCalls = Callable[[CallWriter], CallForms]
DescribeMessage = Callable[[MessageParts], str]
