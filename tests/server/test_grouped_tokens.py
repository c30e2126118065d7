"""Several tokens in one output of the engine: a choice is what it is with one token an output."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.chat.syntax.parts import CallDelta, ContentDelta, Delta, ReasoningDelta
from homenode.engine.messages import Output
from homenode.engine.request import TokenLogprob
from homenode.server.core.answer import GatheredEvents
from homenode.server.core.choices.choice import ChoiceText, GenerationEvent, ScoredToken, join_events
from homenode.server.core.choices.message_reader import MessageEvent, join_message, merge_messages
from tests.examples import examples

_STOPS = (["ab"], ["b", "aba"], ["cab", "aa"], [])


class Letters:
    """Each token is one of three letters; the last one is half of a character, which its next token completes."""

    def __init__(self) -> None:
        self._half = False

    def push(self, ids: Iterable[int]) -> str:
        text = ""
        for token in ids:
            if token == 3 and not self._half:
                self._half = True
                continue
            text += ("é" if token == 3 else "\ufffd" + "abc"[token]) if self._half else "abc"[token]
            self._half = False
        return text

    def flush(self) -> str:
        return "\ufffd" if self._half else ""


def _choice(outputs: list[Output], stops: list[str], shows_stop: bool) -> tuple[GenerationEvent, int]:
    """What comes of it, and the tokens that count."""
    choice = ChoiceText(Letters(), stops=stops, logprobs=True, shows_stop=shows_stop)
    events = []
    for output in outputs:
        events.append(choice.feed(output))
        if choice.finish_reason is not None:
            break
    return join_events(events), choice.num_tokens


@settings(derandomize=True, max_examples=examples(150), deadline=None)
@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=14),
    cuts=st.sets(st.integers(1, 13)),
    stops=st.sampled_from(_STOPS),
    ended=st.booleans(),
    shows_stop=st.booleans(),
)
def test_a_choice_does_not_depend_on_how_tokens_come(
    tokens: list[int], cuts: set[int], stops: list[str], ended: bool, shows_stop: bool
) -> None:
    """Text, ids, log-probabilities, the stop string and the count, also where a stop string ends amid an output."""
    logprobs = [TokenLogprob(-float(i)) for i in range(len(tokens))]

    def outputs(ends: list[int]) -> list[Output]:
        parts = zip([0, *ends], [*ends, len(tokens)], strict=True)
        found = [Output(1, tokens[first:past], logprobs[first:past]) for first, past in parts]
        last = found[-1]
        reason, stop = ("stop", tokens[-1]) if ended else ("length", None)
        found[-1] = Output(1, last.tokens, last.logprobs, finish_reason=reason, stop_token=stop)
        return found

    one_by_one = _choice(outputs(list(range(1, len(tokens)))), stops, shows_stop)
    assert _choice(outputs(sorted(cut for cut in cuts if cut < len(tokens))), stops, shows_stop) == one_by_one


_CONTENT, _THOUGHT = ContentDelta("a"), ReasoningDelta("b")
_CALL = (CallDelta(0, "{", "c1", "f"), CallDelta(0, "x"), CallDelta(0, "}"))


@settings(derandomize=True, max_examples=examples(100), deadline=None)
@given(
    parts=st.lists(
        st.sampled_from([[], [_CONTENT], [_THOUGHT], [_THOUGHT, _CONTENT], [_CONTENT, _CONTENT]]), max_size=60
    ),
    calls=st.booleans(),
    logprobs=st.booleans(),
)
def test_a_message_is_the_same_when_its_events_are_merged_as_they_come(
    parts: list[list[Delta]], calls: bool, logprobs: bool
) -> None:
    """Few events are kept of a long answer that comes whole, and they say what all did."""
    deltas = [*parts, *([delta] for delta in _CALL if calls)]
    scored = [[ScoredToken(i, None, i)] if logprobs else [] for i in range(len(deltas) + 1)]
    events = [MessageEvent(0, each, [i], scored[i], None) for i, each in enumerate([*deltas, []])]
    events[-1] = events[-1]._replace(finish_reason="stop", stop_text="end")
    gathered = GatheredEvents(merge_messages)
    for event in events:
        gathered.add(event)
    whole, merged = join_message(events), join_message(gathered.events)
    assert merged._replace(events=[]) == whole._replace(events=[])
    assert _runs(merged.deltas) == _runs(whole.deltas)
    places = [
        [scored for event in message.events if event.deltas for scored in event.scored] for message in (whole, merged)
    ]
    assert places[0] == places[1]


def _runs(deltas: list[Delta]) -> list[tuple[str, str]]:
    """The texts of parts, in order, however they were cut."""
    found: list[tuple[str, str]] = []
    for delta in deltas:
        kind, text = type(delta).__name__, delta.arguments if isinstance(delta, CallDelta) else delta.text
        if found and found[-1][0] == kind:
            found[-1] = kind, found[-1][1] + text
        else:
            found.append((kind, text))
    return found


def test_a_long_answer_that_comes_whole_keeps_few_events() -> None:
    gathered = GatheredEvents(merge_messages)
    for number in range(4096):
        gathered.add(MessageEvent(0, [_CONTENT if number > 2000 else _THOUGHT], [number], [], None))
    assert len(gathered.events) <= 4096 / 16 + 17
    assert [len(part) for part in join_message(gathered.events).message.__dict__.values()][:2] == [2095, 2001]
