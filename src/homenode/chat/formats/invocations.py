"""MiniMax M2, DeepSeek V3.2 and V4: blocks of invocations, whose tags have the names of a tool and its parameters as
attributes. MiniCPM5: such invocations alone, with CDATA sections around texts that hold tags.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from homenode.chat.formats import ToolFormat
from homenode.chat.grammars.calls import CallBegin, CallForms, CallWriter, parameter_name
from homenode.chat.grammars.inputs import marked_input
from homenode.chat.grammars.lark import literal
from homenode.chat.grammars.parameters import CallableTool, ToolParameter
from homenode.chat.grammars.typed_texts import LineBreaks, json_value, marked_text, typed_text
from homenode.chat.syntax.reader import Marker, Reader
from homenode.chat.syntax.schema_types import STRING, types_of
from homenode.chat.syntax.source import Reading
from homenode.chat.syntax.typed_values import ArgumentMarks, TypedArguments

_NAME = re.compile(r"[^\"<>\n]+")


@dataclass(frozen=True)
class _Tags:
    """The block, empty where there is none; what stands before the names of tags, and these names."""

    begin: str
    end: str
    prefix: str
    invoke_name: str = "invoke"
    parameter_name: str = "parameter"

    @property
    def invoke(self) -> str:
        return f'<{self.prefix}{self.invoke_name} name="'

    @property
    def invoke_end(self) -> str:
        return f"</{self.prefix}{self.invoke_name}>"

    @property
    def parameter(self) -> str:
        return f'<{self.prefix}{self.parameter_name} name="'

    @property
    def arguments(self) -> ArgumentMarks:
        """The tags around arguments."""
        begins, closings = tuple(filter(None, (self.invoke, self.begin))), tuple(filter(None, (self.end,)))
        return ArgumentMarks(self.parameter, '"', self.parameter_end, (self.invoke_end,), begins, closings)

    @property
    def parameter_end(self) -> str:
        return f"</{self.prefix}{self.parameter_name}>"


_MINIMAX = _Tags("<minimax:tool_call>", "</minimax:tool_call>", "")
_DEEPSEEK = _Tags("<｜DSML｜function_calls>", "</｜DSML｜function_calls>", "｜DSML｜")
_DEEPSEEK_V4 = _Tags("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", "｜DSML｜")
_MINICPM = _Tags("", "", "", "function", "param")
_CDATA, _CDATA_END = "<![CDATA[", "]]>"


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


def _read_alone(tags: _Tags, reader: Reader) -> Reading[None]:
    while (yield from reader.read_content((Marker(tags.invoke),))):
        if not (yield from _read_invocation(tags, reader)):
            reader.give_back()


def _read_invocation(tags: _Tags, reader: Reader) -> Reading[bool]:
    source, attempt = reader.source, reader.attempt()
    name = yield from source.read_run(_NAME)
    if not (yield from source.accept('">')) or not attempt.can_be_called(name):
        return False
    attempt.name = name
    arguments = TypedArguments(source, attempt, tags.arguments)
    while True:
        yield from source.skip_space()
        if (yield from source.accept(tags.parameter)):
            key = yield from source.read_run(_NAME)
            kind = yield from source.accept_one(('" string="true">', '" string="false">', '">'))
            if kind is None:
                return False
            kinds = STRING if "true" in kind else None if "false" in kind else reader.tools.types(name, key)
            lines, end = bool(tags.begin) and "string" not in kind, ""
            if not tags.begin and (yield from source.accept(_CDATA)):
                end = _CDATA_END + tags.parameter_end
            if not (yield from arguments.read(key, kinds, end=end, lines=lines)):
                return False
        elif (yield from source.accept(tags.invoke_end)):
            arguments.end()
            return True
        else:
            return False


def _describe(tags: _Tags, writer: CallWriter) -> CallForms:
    lark, calls = writer.lark, []
    for tool in writer.tools:
        parameters = writer.parameters(tool, functools.partial(_parameter, tags, writer, tool))
        begin, end = lark.mark(f'{tags.invoke}{tool.name}">'), lark.mark(tags.invoke_end)
        calls.append(f'{begin} "\\n" {parameters} {end} "\\n"')
    all_calls = writer.one_or_more(writer.any_of(calls), '""')
    return CallForms([CallBegin(f'"\\n" {all_calls} {lark.mark(tags.end)}', tags.begin)])


def _describe_alone(tags: _Tags, writer: CallWriter) -> CallForms:
    calls = []
    for tool in writer.tools:
        parameters = writer.parameters(tool, functools.partial(_parameter_alone, tags, writer, tool))
        calls.append(f"""{literal(f'{tool.name}">')} {parameters} {writer.lark.mark(tags.invoke_end)}""")
    return CallForms([CallBegin(writer.any_of(calls), tags.invoke)], separator='"\\n"?')


def _parameter_alone(tags: _Tags, writer: CallWriter, tool: CallableTool, parameter: ToolParameter) -> str:
    lark, end = writer.lark, tags.parameter_end
    begin = lark.mark(f'{tags.parameter}{parameter_name(tool, parameter, _NAME)}">')
    within = f"{literal(_CDATA)} {typed_text(lark, parameter, _CDATA_END + end, LineBreaks.KEPT, strict=tool.strict)}"
    if parameter.input is not None:
        return f"{begin} {within}"
    plain = typed_text(lark, parameter, end, LineBreaks.KEPT, strict=tool.strict, apart=_CDATA)
    return f"{begin} ({plain} | {within})"


def _parameter(tags: _Tags, writer: CallWriter, tool: CallableTool, parameter: ToolParameter) -> str:
    lark, end = writer.lark, tags.parameter_end
    begin = f'{tags.parameter}{parameter_name(tool, parameter, _NAME)}"'
    if not tags.prefix:
        value = typed_text(lark, parameter, end, LineBreaks.LEFT_OUT, strict=tool.strict)
        return f'{lark.mark(f"{begin}>")} {value} "\\n"'
    if parameter.input is not None:
        value = marked_input(lark, parameter.input, end)
        return f"""{lark.mark(f'{begin} string="true">')} {value} "\\n\""""
    kinds, ways = types_of(parameter.schema, parameter.schema), []
    if kinds is None or "string" in kinds:
        text = marked_text(lark, parameter.schema, end, LineBreaks.KEPT, strict=tool.strict)
        ways.append(f"""{lark.mark(f'{begin} string="true">')} {lark.up_to(text, end)}""")
    if kinds != STRING:
        value = json_value(lark, parameter.schema, strict=tool.strict)
        ways.append(f"""{lark.mark(f'{begin} string="false">')} {value} {lark.mark(end)}""")
    return f'({" | ".join(ways)}) "\\n"'


FORMATS = [
    ToolFormat(
        ("minimax_m2",),
        functools.partial(_read, _MINIMAX),
        (("<minimax:tool_call>",),),
        precedence=4,
        marks=(_MINIMAX.begin, _MINIMAX.end),
        describe_calls=functools.partial(_describe, _MINIMAX),
    ),
    ToolFormat(
        ("minicpm5",),
        functools.partial(_read_alone, _MINICPM),
        (('<function name="', '<param name="'),),
        precedence=3,
        marks=(_MINICPM.invoke_end, _MINICPM.parameter_end),
        describe_calls=functools.partial(_describe_alone, _MINICPM),
    ),
    ToolFormat(
        ("deepseek_v32", "dsml"),
        functools.partial(_read, _DEEPSEEK),
        (("DSML",),),
        precedence=4,
        marks=(_DEEPSEEK.prefix, _DEEPSEEK.begin, _DEEPSEEK.end),
        describe_calls=functools.partial(_describe, _DEEPSEEK),
    ),
    ToolFormat(
        ("deepseek_v4",),
        functools.partial(_read, _DEEPSEEK_V4),
        ((_DEEPSEEK_V4.begin,), ("DSML", "token + 'tool_calls>")),
        precedence=5,
        marks=(_DEEPSEEK_V4.prefix, _DEEPSEEK_V4.begin, _DEEPSEEK_V4.end),
        describe_calls=functools.partial(_describe, _DEEPSEEK_V4),
    ),
]
