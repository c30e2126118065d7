"""Large frames are decoded to the very messages that small ones are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homenode.engine.connection.large_frames import decode_large_body
from homenode.engine.messages import Heartbeat, Output, Outputs, ServingChanged, ToFront
from homenode.engine.request import TokenLogprob
from homenode.errors import PeerError
from homenode.net.message_frames import decode_body, encode_frame

SCORES = st.builds(
    TokenLogprob,
    st.floats(-100, 0),
    st.lists(st.tuples(st.integers(0, 2**31 - 1), st.floats(-100, 0)), max_size=3),
)
OUTPUTS = st.builds(
    Output,
    id=st.integers(0, 2**62),
    tokens=st.lists(st.integers(0, 2**31 - 1), max_size=3),
    logprobs=st.lists(SCORES, max_size=2),
    prompt_logprobs=st.none() | st.lists(st.none() | SCORES, max_size=5),
    finish_reason=st.none() | st.just("stop"),
    cached_tokens=st.integers(0, 9),
)
MESSAGES = (
    st.builds(Outputs, st.lists(OUTPUTS, max_size=4))
    | st.builds(ServingChanged, st.booleans())
    | st.builds(Heartbeat, st.integers(0, 9), st.floats(0, 9))
)


@given(MESSAGES)
def test_the_same_message(message: Outputs | ServingChanged | Heartbeat) -> None:
    body = encode_frame(message)[4:]
    assert decode_large_body(body) == decode_body(body, ToFront) == message


def test_more_scores_than_one_run() -> None:
    scores = [None, *(TokenLogprob(-float(i), [(i, -0.5)]) for i in range(3000))]
    message = Outputs([Output(1, prompt_logprobs=scores)])
    assert decode_large_body(encode_frame(message)[4:]) == message


@pytest.mark.parametrize("scores", [b"\x01", b"\x91\x01", b"\xc1"])
def test_what_is_no_score(scores: bytes) -> None:
    body = encode_frame(Outputs([Output(1, prompt_logprobs=[])]))[4:]
    with pytest.raises(PeerError):
        decode_large_body(body.replace(b"prompt_logprobs\x90", b"prompt_logprobs" + scores))
