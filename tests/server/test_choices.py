"""The text of a choice and what ends it, for stop strings that name special tokens, which answers do not show."""

from __future__ import annotations

import pytest

from homenode.engine.messages import Output
from homenode.server.core.choices.choice import ChoiceText, join_events, single_token_outputs
from tests.server.fakes import BOS, EOS, ByteTokenizer

SEVERAL = [*b"ab", EOS, *b"cd", BOS, *b"ef"]
# Tokens, stop strings, the text that is shown, why it ended, and how many of the tokens belong to the choice.
CASES: dict[str, tuple[list[int], list[str], str, str, int]] = {
    "the token alone": (SEVERAL, ["</s>"], "ab", "stop", 3),
    "a later one": (SEVERAL, ["<s>"], "abcd", "stop", 6),
    "one of several": (SEVERAL, ["nothing", "<s>", "e"], "abcd", "stop", 6),
    "text before it": (SEVERAL, ["b</s>"], "a", "stop", 3),
    "text behind it": (SEVERAL, ["</s>cd"], "ab", "stop", 5),
    "text around it": (SEVERAL, ["d<s>e"], "abc", "stop", 7),
    "two of them": ([*b"a", EOS, BOS, *b"b"], ["</s><s>"], "a", "stop", 3),
    "never complete": (SEVERAL, ["</s>x", "<s>ex"], "abcdef", "length", 8),
    "complete but for the end": (SEVERAL, ["ef</s>"], "abcdef", "length", 8),
    "written in letters": ([*b"ab</s>c"], ["</s>"], "ab", "stop", 6),
    "no stop string": (SEVERAL, [], "abcdef", "length", 8),
}


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("case", CASES)
def test_a_stop_string_may_name_special_tokens(case: str, size: int) -> None:
    tokens, stops, text, reason, count = CASES[case]
    tokenizer = ByteTokenizer()
    choice = ChoiceText(tokenizer.stream(), stops=stops, hidden=tokenizer.special_tokens_in(stops))
    shown, taken = "", 0
    for start in range(0, len(tokens), size):
        last = start + size >= len(tokens)
        piece = choice.feed(Output(1, tokens[start : start + size], finish_reason="length" if last else None))
        shown, taken = shown + piece.text, taken + len(piece.token_ids)
        if choice.finish_reason is not None:
            break
    assert (shown, choice.finish_reason, taken) == (text, reason, count)


@pytest.mark.parametrize("case", CASES)
def test_tokens_that_came_together_are_read_one_by_one(case: str) -> None:
    tokens, stops, text, reason, count = CASES[case]
    tokenizer = ByteTokenizer()
    choice = ChoiceText(tokenizer.stream(), stops=stops, hidden=tokenizer.special_tokens_in(stops))
    events = []
    for output in single_token_outputs(Output(1, tokens, finish_reason="length")):
        assert len(output.tokens) == 1 and choice.finish_reason is None
        events.append(choice.feed(output))
        if choice.finish_reason is not None:
            break
    whole = join_events(events)
    assert (whole.text, whole.finish_reason, len(whole.token_ids)) == (text, reason, count)


def test_an_output_without_or_with_one_token_or_with_very_many_stays_what_it_is() -> None:
    many = Output(1, [7] * 10_000, finish_reason="length")  # no step brings as many
    for output in (
        many,
        Output(1, finish_reason="stop"),
        Output(1, [7], finish_reason="stop", stop_token=7, queued_s=2.0),
    ):
        assert single_token_outputs(output) == [output]
