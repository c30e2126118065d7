"""Calls as a model of a chat template writes them."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from typing import Any

from homenode.chat.choice import choose
from homenode.chat.parser import MessageParser, parse_message
from homenode.errors import UserError
from homenode.model.tokenizer import Tokenizer
from homenode.model.tokenizer.chat_prompt import chat_prompt
from tests.agents.scripted_work import Call

_THOUGHTS_END = ("", "</think>", "<|END_THINKING|>", "<channel|>", "</mm:think>", "</think:opensource>")
_LONGEST_MARK = 20
_FARTHEST = 60  # characters from the beginning of an answer to its call, and ends of it that are tried
_ASKED = {"role": "user", "content": "Look."}


def spell_call(tokenizer: Tokenizer, call: Call, before: str) -> str:
    """The first of several spellings that is read as the call and nothing else, behind the prompt `before`; else the
    first with the call in it.
    """
    name, arguments = call
    tools, template, found = [_tool(call)], tokenizer.template_source(True) or "", ""
    for text in _spellings(tokenizer, call):
        read = parse_message(MessageParser(choose(template), before, tools), text)
        if [(each.name, _object(each.arguments)) for each in read.calls] == [(name, arguments)]:
            if not read.content.strip():
                return text
            found = found or text
    assert found, f"no spelling of a call is read by {choose(template).tools.name}"
    return found


def spell_answer(tokenizer: Tokenizer, content: str, before: str) -> str:
    """The content of an answer behind the prompt `before`, with the end of the thoughts that it may have begun."""
    template = tokenizer.template_source(True) or ""
    said = [_ASKED, {"role": "assistant", "content": content}]
    whole = chat_prompt(tokenizer, said, values={"add_generation_prompt": False}).text
    behind = whole[_common(chat_prompt(tokenizer, [_ASKED]).text, whole) :]
    texts = [end + content for end in (*_THOUGHTS_END, "[BEGIN FINAL RESPONSE]")]
    texts += [behind[start : behind.rfind(content) + len(content)] for start in range(_FARTHEST)]
    for text in texts:
        parser = MessageParser(choose(template), before, [_tool(("look", {}))])
        if parse_message(parser, text).content == content:
            return text
    raise AssertionError(f"no end of thoughts is known to {choose(template).thoughts_name}")


def _spellings(tokenizer: Tokenizer, call: Call) -> Iterator[str]:
    written = json.dumps({"name": call[0], "arguments": call[1]}, ensure_ascii=False)
    yield f"<tool_call>\n{written}\n</tool_call>"
    yield written
    yield f"</think><tool_calls>[{written}]</tool_calls>"
    yield f"[BEGIN FINAL RESPONSE]\n<tool_calls>[{written}]</tool_calls>"
    fenced = f"```json\n{json.dumps(call[1])}\n```"
    one = f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{call[0]}\n{fenced}<｜tool▁call▁end｜>"
    yield f"</think><｜tool▁calls▁begin｜>{one}<｜tool▁calls▁end｜>"
    before = chat_prompt(tokenizer, [_ASKED], [_tool(call)]).text
    for whole in _renderings(tokenizer, call):
        common = _common(before, whole)
        begin = max(before.rfind("<", 0, common), common - _LONGEST_MARK, 0)  # of a mark that both begin with
        text = whole[begin:]
        marks = [common - begin, *(at for at, sign in enumerate(text) if sign in "<[" and at < _FARTHEST)]
        ends = [at for at in range(len(text), 0, -1) if text[at - 1] in ">])}\n"]
        yield text
        yield from (text[:end] for end in ends)
        for start, close in itertools.product([0, *marks], _THOUGHTS_END):
            yield from (close + text[start:end] for end in ends[-_FARTHEST:] if end > start)


def _common(one: str, other: str) -> int:
    """Characters that both begin with."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _renderings(tokenizer: Tokenizer, call: Call) -> Iterator[str]:
    """Conversations that go on with the call, as the template has it in a history."""
    named = {"name": call[0], "arguments": call[1]}
    id = "a23456789"
    said = {"role": "assistant", "content": "", "tool_calls": [{"id": id, "type": "function", "function": named}]}
    for behind in ([], [{"role": "tool", "tool_call_id": id, "name": call[0], "content": "Seen."}]):
        with contextlib.suppress(UserError):
            given: list[dict[str, Any]] = [_ASKED, said, *behind]
            yield chat_prompt(tokenizer, given, [_tool(call)], {"add_generation_prompt": False}).text


def _tool(call: Call) -> dict[str, Any]:
    properties = {name: {"type": "string"} for name in call[1]}
    schema = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": call[0], "description": "Looks.", "parameters": schema}}


def _object(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return None
