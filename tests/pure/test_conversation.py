"""What commands do to a conversation, and which lines are commands at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homenode.cli.generation.conversation import TerminalConversation

SYSTEM = {"role": "system", "content": "Be brief."}


def begun(system: str = "Be brief.") -> TerminalConversation:
    conversation = TerminalConversation(system)
    conversation.ask("one")
    conversation.answered("two")
    return conversation


def test_a_conversation_grows_by_questions_and_answers() -> None:
    conversation = begun()
    assert conversation.ask("three") == [
        SYSTEM,
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    conversation.take_back()
    assert conversation.messages[-1]["content"] == "two"


@pytest.mark.parametrize(
    ("line", "told", "messages", "over"),
    [
        ("/reset", "a new conversation begins, with the system message", [SYSTEM], False),
        ("/new", "a new conversation begins", [SYSTEM], False),
        ("/RESET", "a new conversation begins", [SYSTEM], False),
        ("/system Be kind.", "the system message is set", [{"role": "system", "content": "Be kind."}], False),
        ("/system", "there is no system message", [], False),
        ("/exit", "", None, True),
        ("/quit", "", None, True),
        ("/help", "/system TEXT", None, False),
        ("/?", "Ctrl-D", None, False),
        ("/rest", "did you mean /reset?", None, False),
        ("/sytem Be kind.", "did you mean /system?", None, False),
        ("/hlep", "did you mean /help?", None, False),
        ("/", "/help lists those there are", None, False),
        ("/frobnicate", "there is no command /frobnicate; /help", None, False),
    ],
)
def test_a_table_of_commands(line: str, told: str, messages: list[dict[str, str]] | None, over: bool) -> None:
    conversation = begun()
    before = list(conversation.messages)
    found = conversation.obey(line)
    assert found is not None
    assert told in found
    assert conversation.messages == (before if messages is None else messages)
    assert conversation.is_over is over


@pytest.mark.parametrize("line", ["/usr/bin/python is what?", "what is /reset", "1/2", "hello", "// a comment"])
def test_lines_that_are_to_be_asked(line: str) -> None:
    conversation = begun()
    assert conversation.obey(line) is None
    assert conversation == begun()


def test_help_names_every_command() -> None:
    text = begun().obey("/help") or ""
    assert all(word in text for word in ("/help", "/reset", "/system", "/exit", "Ctrl-C", "Ctrl-D"))


@given(st.text(max_size=20))
def test_nothing_that_begins_otherwise_is_a_command(text: str) -> None:
    if not text.startswith("/"):
        assert begun().obey(text) is None


@given(st.lists(st.sampled_from(["/reset", "/system Be kind.", "/system", "/nothing", "ask"]), max_size=12))
def test_there_is_at_most_one_system_message_and_it_comes_first(lines: list[str]) -> None:
    conversation = begun()
    for line in lines:
        if conversation.obey(line) is None:
            conversation.ask(line)
            conversation.answered("yes")
    roles = [message["role"] for message in conversation.messages]
    assert "system" not in roles[1:]
    assert (roles[:1] == ["system"]) == bool(conversation.system)
