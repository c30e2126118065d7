"""Ids of calls are of one call in a conversation, whatever the model writes: who runs them tells them apart by
these."""

from __future__ import annotations

import json

import pytest

from homenode.chat.choice import choose
from homenode.chat.parser import MessageParser, parse_message
from tests.pure.chat.messages import TOOLS

NAME = TOOLS[0]["function"]["name"]
_KIMI = "<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
WRITTEN = {  # by a model that counts its calls from 0 in each message
    "kimi_k2": lambda count: "<|tool_calls_section_begin|>" + "".join(
        _KIMI.format(name=NAME, number=number) for number in range(count)
    ) + "<|tool_calls_section_end|>",
    "cohere_command3": lambda count: "<|START_ACTION|>" + json.dumps(
        [{"tool_call_id": str(number), "tool_name": NAME, "parameters": {}} for number in range(count)]
    ) + "<|END_ACTION|>",
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_no_two_messages_of_a_conversation_have_calls_of_one_id(name: str) -> None:
    seen: list[str] = []
    for count in (1, 2, 1, 3):
        parser = MessageParser(choose("", tool_parser=name), "", TOOLS, taken_ids=seen)
        calls = parse_message(parser, WRITTEN[name](count)).calls
        assert len(calls) == count
        seen += [call.id for call in calls]
    assert len(set(seen)) == len(seen) == 7
    head = "" if name == "cohere_command3" else f"functions.{NAME}:"
    assert set(seen) == {f"{head}{number}" for number in range(7)}, "they are counted on, as the model writes them"


def test_an_id_without_a_number_is_replaced_by_a_new_one() -> None:
    text = f"[TOOL_CALLS]{NAME}[CALL_ID]abcdefghi[ARGS]{{}}"
    chosen = choose("", tool_parser="mistral")
    assert [call.id for call in parse_message(MessageParser(chosen, "", TOOLS), text).calls] == ["abcdefghi"]
    again = MessageParser(chosen, "", TOOLS, taken_ids=["abcdefghi"], new_id=lambda: "new")
    assert [call.id for call in parse_message(again, text).calls] == ["new"]
