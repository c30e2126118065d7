"""Several tokens in one output of the engine: a choice is what it is with one token an output."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.engine.messages import Output
from homenode.engine.request import TokenLogprob
from homenode.server.core.choice import ChoiceText, GenerationEvent, join_events
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
