"""Command-R7B and later: a list of calls between <|START_ACTION|> and <|END_ACTION|>. Command-R: a list in a block of
code behind the word Action.
"""

from __future__ import annotations

from homenode.chat.formats import ToolFormat
from homenode.chat.grammars.call_objects import call_list, call_object
from homenode.chat.grammars.calls import CallBegin, CallForms, CallWriter
from homenode.chat.syntax.call_objects import read_call_list, read_tagged_list
from homenode.chat.syntax.reader import Marker, Reader
from homenode.chat.syntax.source import Reading

_BEGIN, _END = "<|START_ACTION|>", "<|END_ACTION|>"
_ACTION = Marker("Action:", on_new_line=True)


def _read_tokens(reader: Reader) -> Reading[None]:
    yield from read_tagged_list(reader, (Marker(_BEGIN),), _END)


def _read_block(reader: Reader) -> Reading[None]:
    source = reader.source
    while (yield from reader.read_content((_ACTION,))):
        yield from source.skip_space()
        if (yield from source.accept("```")):
            yield from source.accept("json")
        if (yield from read_call_list(reader)):
            yield from source.skip_space()
            if (yield from source.accept("```")):
                continue
        reader.give_back()


def _describe_tokens(writer: CallWriter) -> CallForms:
    an_id = r'("tool_call_id": ?"[0-9]{1,3}",[ \n]?)?'
    objects = [call_object(writer, tool, "tool_name", "parameters", before=an_id) for tool in writer.tools]
    return CallForms([CallBegin(f'"\\n"? {call_list(writer, objects)} "\\n"? {writer.lark.mark(_END)}', _BEGIN)])


def _describe_block(writer: CallWriter) -> CallForms:
    objects = [call_object(writer, tool, "tool_name", "parameters") for tool in writer.tools]
    block = f'/ ?```json\\n/ {call_list(writer, objects)} "\\n"? "```"'
    return CallForms([CallBegin(block, pattern=_ACTION.text)], excluded_on_new_line=[_ACTION.text])


FORMATS = [
    ToolFormat(
        ("cohere_command3", "cohere_command4"),
        _read_tokens,
        ((_BEGIN,),),
        precedence=2,
        marks=(_BEGIN, _END),
        describe_calls=_describe_tokens,
    ),
    ToolFormat(("command_r",), _read_block, (("Action:", "tool_name"),), precedence=1, describe_calls=_describe_block),
]
