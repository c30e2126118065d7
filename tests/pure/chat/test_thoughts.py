"""Thoughts apart from content."""

from __future__ import annotations

import pytest

from homenode.chat.formats import all_formats
from homenode.chat.grammars.thoughts import ThoughtsBegin, thoughts_begin
from homenode.chat.syntax.reasoning import FORMS
from homenode.errors import UserError

from .messages import parse

CALL = '<tool_call>{"name": "list_trains", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
    ("form", "prompt", "text", "reasoning", "content"),
    [
        ("think", "", "<think>\nhm\n\nso\n</think>\n\n  Yes\n", "hm\n\nso", "  Yes\n"),
        ("think", "", "Yes <think>no</think>", "", "Yes <think>no</think>"),
        ("think", "user<think>\n", "hm</think>Yes", "hm", "Yes"),
        ("think", "<think>a</think>b<think>", "<think>hm</think>Yes", "hm", "Yes"),
        ("think", "<think>\n\n</think>\n\n", "Yes", "", "Yes"),
        ("think", "", "<think>never", "never", ""),
        ("think", "", "<think></think>\n", "", ""),
        ("deepseek_r1", "", "hm</think>Yes</think>", "hm", "Yes</think>"),
        ("deepseek_r1", "<think>\n\n</think>\n", "Yes", "", "Yes"),
        ("minimax_m3", "", "</mm:think>Yes</mm:think>", "", "Yes</mm:think>"),
        ("minimax_m3", "</mm:think>", "Yes", "", "Yes"),
        ("mistral", "", "So. [THINK]a[/THINK]b[THINK]c[/THINK]d", "a\nc", "So. bd"),
        ("granite_think", "", "<think>a</think><response>b</response>", "a", "b"),
        ("granite", "", "Here is my thought process: a\nHere is my response: b", " a", " b"),
        ("gemma4", "", "<|channel>thought\na\n<channel|>b", "a", "b"),
        ("cohere_command3", "", "<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>b<|END_RESPONSE|>", "a", "b"),
        ("cohere_command3", "", "<|START_THINKING|>a<|END_THINKING|><|START_TEXT|>b<|END_TEXT|>", "a", "b"),
        (
            "kimi_k3",
            "<|open|>think<|sep|>",
            "a<|close|>think<|sep|><|open|>response<|sep|>b<|close|>response<|sep|><|close|>message<|sep|>",
            "a",
            "b",
        ),
        ("solar_open", "", "<|think|>a<|end|><|begin|>assistant<|content|>b<|end|>", "a", "b"),
        ("hy3", "<think:opensource>", "a</think:opensource>b", "a", "b"),
        ("apriel", "Here are my reasoning steps:\n", "a\n[BEGIN FINAL RESPONSE]\nb", "a", "b"),
        ("minimax_m3", "<mm:think>", "a</mm:think>b", "a", "b"),
        ("apertus", "", "<|inner_prefix|>a<|inner_suffix|>b", "a", "b"),
        ("none", "", "<think>a</think>b", "", "<think>a</think>b"),
    ],
)
def test_thoughts_are_told_from_content(form: str, prompt: str, text: str, reasoning: str, content: str) -> None:
    message = parse(text, "hermes", thoughts=form, prompt=prompt)
    assert (message.reasoning, message.content) == (reasoning, content)
    assert parse(list(text), "hermes", thoughts=form, prompt=prompt) == message


@pytest.mark.parametrize("raw", [False, True])
def test_a_call_within_thoughts_is_a_thought(raw: bool) -> None:
    message = parse(f"<think>{CALL}</think>\n{CALL}", "hermes", thoughts="think", raw=raw)
    assert len(message.calls) == 1
    assert message.reasoning == ("" if raw else CALL)
    assert message.content == (f"<think>{CALL}</think>" if raw else "")


# The beginning of an answer, what the model writes behind it, and the thoughts and the content of that.
BEGUN = [
    ("Sure: ", ' {"a": 1}\n', "", ' {"a": 1}\n'),
    ("Sure", "BEGIN not a thought", "", "BEGIN not a thought"),
    ("BEGINhm,", " so\nEND\nYes", " so", "Yes"),
    ("\nBEGINhm", "", "", ""),
    ("BEGINhm\nEND\n\nYes,", " and no", "", " and no"),
    ("BEGINhmEND", "\n\nYes", "", "Yes"),
]


@pytest.mark.parametrize("form", [name for name, form in FORMS.items() if form.begin])
@pytest.mark.parametrize(("begun", "text", "reasoning", "content"), BEGUN)
def test_behind_words_of_an_answer_no_thoughts_are_open(
    form: str, begun: str, text: str, reasoning: str, content: str
) -> None:
    marks = FORMS[form]
    begun, text, content = (
        one.replace("BEGIN", marks.begin).replace("END", marks.end) for one in (begun, text, content)
    )
    if marks.anywhere and marks.begin in text:
        return  # such a mark opens thoughts wherever it is
    for name in (known.name for known in all_formats()):
        message = parse(text, name, thoughts=form, prompt=f"Give JSON.{begun}", begun=begun)
        assert (message.reasoning, message.content) == (reasoning, content), name
        assert parse(list(text), name, thoughts=form, prompt=f"Give JSON.{begun}", begun=begun) == message
    opened = bool(reasoning) or ("hm" in begun and marks.end not in begun)
    wanted = ThoughtsBegin.OPEN if opened and marks.begin in begun else ThoughtsBegin.CLOSED
    assert thoughts_begin(marks, f"Give JSON.{begun}", begun) is wanted


def test_a_begun_block_of_code_holds_no_call_and_ends() -> None:
    for begun, calls in (("See:\n```json\n", 1), ("See:\n", 2), ("```\na\n```\n", 2)):
        message = parse(f"{CALL}\n```\n{CALL}" if calls == 1 else f"{CALL}\n{CALL}", "hermes", begun=begun)
        assert len(message.calls) == calls, begun


@pytest.mark.parametrize("name", [known.name for known in all_formats() if known.name != "openai"])
@pytest.mark.parametrize("form", [name for name, form in FORMS.items() if form.opened])
def test_open_thoughts_are_given_once(name: str, form: str) -> None:
    for text, reasoning, content in (("N|", "N|", ""), ("a</think>N|", "a", "N|"), ("all\nN|", "all\nN|", "")):
        for eager in (False, True):
            message = parse(text, name, thoughts=form, eager=eager)
            assert (message.reasoning, message.content) == (reasoning, content)
            assert parse(list(text), name, thoughts=form, eager=eager) == message


def test_a_name_that_there_is_not_is_refused_with_those_there_are() -> None:
    with pytest.raises(UserError, match=r"no reasoning parser 'x'; there are .*qwen3"):
        parse("", thoughts="x")
    with pytest.raises(UserError, match=r"no tool call parser 'x'; there are .*hermes"):
        parse("", "x")
