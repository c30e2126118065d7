"""MiniMax M2 and DeepSeek V3.2: blocks of invocations, whose tags have the names of a tool and its parameters as
attributes.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from homenode.chat.formats import ToolFormat
from homenode.chat.reading.reader import Marker, Reader
from homenode.chat.reading.source import Reading
from homenode.chat.reading.typed_values import TypedArguments

_NAME = re.compile(r"[^\"<>\n]+")


@dataclass(frozen=True)
class _Tags:
    """The block, and what stands before the names of tags."""

    begin: str
    end: str
    prefix: str

    @property
    def invoke(self) -> str:
        return f'<{self.prefix}invoke name="'

    @property
    def parameter(self) -> str:
        return f'<{self.prefix}parameter name="'

    def closing(self, name: str) -> str:
        return f"</{self.prefix}{name}>"


_MINIMAX = _Tags("<minimax:tool_call>", "</minimax:tool_call>", "")
_DEEPSEEK = _Tags("<｜DSML｜function_calls>", "</｜DSML｜function_calls>", "｜DSML｜")


def _read(tags: _Tags, reader: Reader) -> Reading[None]:
    source = reader.source
    while (yield from reader.read_content((Marker(tags.begin),))):
        while True:
            yield from source.skip_space()
            if not (yield from source.accept(tags.invoke)) or not (yield from _read_invocation(tags, reader)):
                break
        if reader.just_called and (yield from source.accept(tags.end)):
            continue
        reader.give_back()


def _read_invocation(tags: _Tags, reader: Reader) -> Reading[bool]:
    source, attempt = reader.source, reader.attempt()
    name = yield from source.read_run(_NAME)
    if not (yield from source.accept('">')) or not attempt.can_be_called(name):
        return False
    attempt.name = name
    arguments = TypedArguments(source, attempt)
    end = tags.closing("invoke")
    while True:
        yield from source.skip_space()
        if (yield from source.accept(tags.parameter)):
            key = yield from source.read_run(_NAME)
            kind = yield from source.accept_one(('" string="true">', '" string="false">', '">'))
            if kind is None:
                return False
            schema = {"type": "string"} if "true" in kind else {} if "false" in kind else reader.tools.schema(name, key)
            followers = (tags.parameter, end)
            closing = tags.closing("parameter")
            if not (yield from arguments.read(key, schema, closing, followers, lines="string" not in kind)):
                return False
        elif (yield from source.accept(end)):
            arguments.end()
            return True
        else:
            return False


FORMATS = [
    ToolFormat(
        ("minimax_m2",),
        functools.partial(_read, _MINIMAX),
        (("<minimax:tool_call>",),),
        precedence=4,
        marks=(_MINIMAX.begin, _MINIMAX.end),
    ),
    ToolFormat(
        ("deepseek_v32", "dsml"),
        functools.partial(_read, _DEEPSEEK),
        (("DSML",),),
        precedence=4,
        marks=(_DEEPSEEK.prefix, _DEEPSEEK.begin, _DEEPSEEK.end),
    ),
]
