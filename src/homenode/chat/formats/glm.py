"""GLM 4.5 and later: a name between <tool_call> tags, then keys and values between tags of their own. Hunyuan 3: the
same within a section of calls, with a word at the end of each tag.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from homenode.chat.formats import ToolFormat
from homenode.chat.grammars.calls import CallBegin, CallForms, CallWriter, parameter_name
from homenode.chat.grammars.parameters import CallableTool, ToolParameter
from homenode.chat.grammars.typed_texts import LineBreaks, typed_text
from homenode.chat.syntax.reader import Marker, Reader
from homenode.chat.syntax.sections import read_sections
from homenode.chat.syntax.source import Reading
from homenode.chat.syntax.typed_values import ArgumentMarks, TypedArguments

_NAME = re.compile(r"[^<>\n]+")


@dataclass(frozen=True)
class _ArgumentTags:
    """Tags whose names all end with `suffix`. `separator`: what stands behind the name of a tool. `section`: the tag
    around all calls, if there is one.
    """

    suffix: str = ""
    separator: str = ""
    section: str = ""

    def begin(self, name: str) -> str:
        return f"<{name}{self.suffix}>"

    def end(self, name: str) -> str:
        return f"</{name}{self.suffix}>"

    @property
    def arguments(self) -> ArgumentMarks:
        """The tags around arguments."""
        begin, end = self.begin("tool_call"), self.end("tool_call")
        return ArgumentMarks(
            self.begin("arg_key"), self.end("arg_key"), self.end("arg_value"), (end,), (begin,), closings=(end,)
        )

    @property
    def marks(self) -> tuple[str, ...]:
        names = [name for name in (self.section, "tool_call", "arg_key", "arg_value") if name]
        pairs = [text for name in names for text in (self.begin(name), self.end(name))]
        return (*pairs, *([self.separator] if self.separator else ()))


_GLM = _ArgumentTags()
_HY3 = _ArgumentTags(":opensource", "<tool_sep:opensource>", "tool_calls")


def _read(tags: _ArgumentTags, reader: Reader) -> Reading[None]:
    call = Marker(tags.begin("tool_call"))
    if tags.section:
        section, read_call = tags.section, functools.partial(_read_call, tags)
        yield from read_sections(reader, Marker(tags.begin(section)), call, tags.end(section), read_call)
        return
    while (yield from reader.read_content((call,))):
        if not (yield from _read_call(tags, reader)):
            reader.give_back()


def _read_call(tags: _ArgumentTags, reader: Reader) -> Reading[bool]:
    source, attempt = reader.source, reader.attempt()
    yield from source.skip_space()
    name = (yield from source.read_run(_NAME)).strip()
    if not attempt.can_be_called(name) or not (yield from source.accept(tags.separator)):
        return False
    attempt.name = name
    marks = tags.arguments
    arguments = TypedArguments(source, attempt, marks)
    while True:
        yield from source.skip_space()
        if (yield from source.accept(marks.name_begin)):
            key = (yield from source.read_run(_NAME)).strip()
            if not (yield from source.accept(marks.name_end)):
                return False
            yield from source.skip_space()
            if not (yield from source.accept(tags.begin("arg_value"))):
                return False
            if not (yield from arguments.read(key, reader.tools.types(name, key), lines=False)):
                return False
        elif (yield from source.accept(tags.end("tool_call"))):
            arguments.end()
            return True
        else:
            return False


def _describe(tags: _ArgumentTags, writer: CallWriter) -> CallForms:
    lark, calls = writer.lark, []
    for tool in writer.tools:
        parameters = writer.parameters(tool, functools.partial(_parameter, tags, writer, tool))
        calls.append(f'{lark.mark(tool.name + tags.separator)} "\\n"? {parameters} {lark.mark(tags.end("tool_call"))}')
    begin, call = tags.begin("tool_call"), writer.any_of(calls)
    if not tags.section:
        return CallForms([CallBegin(f'"\\n"? {call}', begin)], separator='"\\n"?')
    all_calls = writer.one_or_more(f"{lark.mark(begin)} {call}", '"\\n"?')
    section, end = tags.begin(tags.section), lark.mark(tags.end(tags.section))
    return CallForms([CallBegin(f'"\\n"? {all_calls} "\\n"? {end}', section)], excluded=(begin,))


def _parameter(tags: _ArgumentTags, writer: CallWriter, tool: CallableTool, parameter: ToolParameter) -> str:
    name = parameter_name(tool, parameter, _NAME)
    key = writer.lark.mark(f"{tags.begin('arg_key')}{name}{tags.end('arg_key')}")
    text = typed_text(writer.lark, parameter, tags.end("arg_value"), LineBreaks.KEPT, strict=tool.strict)
    return f'{key} "\\n"? {writer.lark.mark(tags.begin("arg_value"))} {text} "\\n"?'


FORMATS = [
    ToolFormat(
        ("glm45", "glm47", "glm4_moe"),
        functools.partial(_read, _GLM),
        (("<arg_key>",),),
        precedence=3,
        marks=_GLM.marks,
        describe_calls=functools.partial(_describe, _GLM),
    ),
    ToolFormat(
        ("hy3",),
        functools.partial(_read, _HY3),
        (("<arg_key{}>",), ("<arg_key:opensource>",)),
        precedence=3,
        marks=_HY3.marks,
        describe_calls=functools.partial(_describe, _HY3),
    ),
]
