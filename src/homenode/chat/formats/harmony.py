"""gpt-oss: messages with a channel each, of which one has thoughts, one the answer, and one text and calls of tools."""

from __future__ import annotations

import re
from collections.abc import Callable

from homenode.chat.formats import ToolFormat
from homenode.chat.grammars.calls import CallWriter, MessageParts
from homenode.chat.grammars.lark import LarkWriter, escape
from homenode.chat.grammars.parameters import CallableTool
from homenode.chat.grammars.thoughts import open_thoughts
from homenode.chat.syntax.call_objects import read_arguments
from homenode.chat.syntax.reader import Reader
from homenode.chat.syntax.source import Reading, TextSource

_START, _CHANNEL, _CONSTRAIN, _MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_PLAIN = re.compile("[^<]+")
_RECIPIENT = re.compile(r"\bto=(\S+)")
_FUNCTIONS = "functions."  # before the names of tools; some calls go without it
_CHANNELS = ("analysis", "commentary", "final")
_LONGEST_HEADER = 1000


def _read(reader: Reader) -> Reading[None]:
    source = reader.source
    begins: tuple[str, ...] = (_START, _CHANNEL)
    if not reader.goes_on:
        begins = (*begins, _MESSAGE, " to=", "to=")  # the prompt ends behind the role
    while (yield from source.peek()):
        source.forget()
        begun, begins = begins, (_START, _CHANNEL)
        mark = yield from source.accept_one(begun)
        if mark is None:
            yield from _read_text(reader, reader.writer.write_content)
            continue
        header = "" if mark == _MESSAGE else (yield from _read_header(reader))
        if header is None:
            reader.give_back()
            continue
        yield from _read_message(reader, header)


def _read_header(reader: Reader) -> Reading[str | None]:
    """Return what is before <|message|>, tokens as spaces; None where that does not come."""
    source = reader.source
    words = ["" if source.raw[-1] == _START else source.raw[-1]]
    size = 0
    while size < _LONGEST_HEADER and (yield from source.peek()):
        if run := source.take_run(_PLAIN):
            words.append(run)
            size += len(run)
        elif token := (yield from source.accept_one((_CHANNEL, _CONSTRAIN, _MESSAGE))):
            if token == _MESSAGE:
                return "".join(words)
            words.append(token if token == _CHANNEL else " ")
            size += len(token)
        else:
            return None
    return None


def _read_message(reader: Reader, header: str) -> Reading[None]:
    before, _, channel = header.rpartition(_CHANNEL)
    kind = channel.split()[0] if channel.split() else ""
    found = _RECIPIENT.search(f"{before} {channel}".replace(_CHANNEL, " "))
    recipient = found[1] if found else ""
    name = recipient.removeprefix(_FUNCTIONS)
    if name in reader.tools or (reader.tools and name != recipient):
        yield from _read_call(reader, name)
    elif kind == "analysis":
        if reader.thoughts.raw:
            reader.give_back()
            yield from _read_text(reader, reader.writer.write_content)
        else:
            yield from _read_text(reader, reader.writer.write_thoughts)
            reader.writer.end_thoughts()
    else:
        if recipient or not (kind in _CHANNELS or header.strip() in ("", "assistant")):
            reader.give_back()
        yield from _read_text(reader, reader.writer.write_content)


def _read_call(reader: Reader, name: str) -> Reading[None]:
    """Arguments; where they are none, the text of the message is content."""
    source, attempt = reader.source, reader.attempt()
    source.forget()
    if attempt.can_be_called(name):
        attempt.name = name
        yield from source.skip_space()
        if (yield from source.accept_one(_ENDS)):
            attempt.finish()
            return
        if (yield from read_arguments(source, attempt)):
            attempt.finish()
            yield from source.skip_space()
            if (yield from source.accept_one(_ENDS)):
                return
    reader.give_back()
    yield from _read_text(reader, reader.writer.write_content)


def _read_text(reader: Reader, write: Callable[[str], None]) -> Reading[None]:
    """Write text up to a token that ends a message, which is left out, or to one that begins another."""
    source = reader.source
    while (yield from source.peek()):
        source.forget()
        if run := source.take_run(_PLAIN):
            write(run)
        elif (yield from source.accept_one(_ENDS)) or (yield from _is_header(source)):
            return
        else:
            write(source.take())


def _is_header(source: TextSource) -> Reading[bool]:
    return (yield from source.looking_at(_START)) or (yield from source.looking_at(_CHANNEL))


_HEAD = f"{_START}assistant"
_JSON = f" {_CONSTRAIN}json"


def _describe(parts: MessageParts) -> str:
    lark = parts.lark
    marks = [_START, _CHANNEL, _CONSTRAIN, _MESSAGE, *_ENDS]
    text = lark.without(map(escape, marks))
    thoughts = open_thoughts(lark, _ENDS[0], parts.budget, marks)
    thoughts = f"{lark.mark(f'{_CHANNEL}analysis{_MESSAGE}')} {thoughts} {lark.mark(_HEAD)}"
    before = f"{lark.mark(f'{_CHANNEL}commentary{_MESSAGE}')} {lark.up_to(text, _ENDS[0])} {lark.mark(_HEAD)}"
    if parts.budget is None:
        begin = f"({thoughts})*" if parts.must_call else f"({thoughts} | {before})*"
    else:
        begin = " ".join([f"({thoughts})?" * (parts.budget > 0), f"({before})*" * (not parts.must_call)])
    ways = [] if parts.calls is None else [_call(parts.calls, tool) for tool in parts.calls.tools]
    if not parts.must_call:
        final = f"{lark.mark(f'{_CHANNEL}final')} ({lark.mark(_JSON)})? {lark.mark(_MESSAGE)}"
        ways.append(f"{final} {parts.content or text} {_end(lark)}")
    return f"{begin} ({' | '.join(ways)})"


def _call(writer: CallWriter, tool: CallableTool) -> str:
    lark = writer.lark
    begin = lark.mark(f"{_CHANNEL}commentary to=functions.{tool.name}")
    return f"{begin} ({lark.mark(_JSON)})? {lark.mark(_MESSAGE)} {writer.arguments(tool)} {_end(lark)}"


def _end(lark: LarkWriter) -> str:
    """Return what may be written behind a message where it is no token that ends the answer."""
    ends = [lark.mark(end) for end in _ENDS[1:] if not lark.is_token(end)]
    return f"({' | '.join(ends)})?" if ends else ""


FORMATS = [
    ToolFormat(
        ("openai", "harmony", "gpt_oss"),
        _read,
        ((_CHANNEL, _MESSAGE),),
        precedence=5,
        marks=(_START, _CHANNEL, _CONSTRAIN, _MESSAGE, *_ENDS),
        without_tools=True,
        describe_message=_describe,
    )
]
