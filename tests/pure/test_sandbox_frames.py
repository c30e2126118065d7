"""Frames between a sandboxed process and its parent: any JSON goes through unchanged, and nothing else makes the
reader wait or take memory.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homenode.model.sandbox.frames import LARGEST_FRAME, FrameStream, SandboxFrameError, decode, encode
from tests.waiting import PATIENCE_S

TEXT = st.text(st.characters(codec=None), max_size=20)  # lone surrogates too
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture
def ends() -> Iterator[tuple[FrameStream, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield FrameStream(ours), theirs


@given(st.dictionaries(TEXT, VALUES, max_size=4))
def test_json_goes_through_unchanged(value: dict[str, Any]) -> None:
    assert decode(encode(value)) == value


def test_frames_that_come_together_are_parted(ends: tuple[FrameStream, socket.socket]) -> None:
    stream, other = ends
    FrameStream(other).send(encode({"a": 1}), encode({}), encode({"b": "é"}))
    assert [stream.receive(time.monotonic() + PATIENCE_S) for _ in range(3)] == [{"a": 1}, {}, {"b": "é"}]


@pytest.mark.parametrize("value", [object(), {1}, b"", 10**5000], ids=["object", "set", "bytes", "digits"])
def test_what_is_no_json_is_not_sent(value: Any) -> None:
    with pytest.raises(SandboxFrameError):
        encode({"value": value})


def test_a_value_as_deep_as_a_well_is_not_sent() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(SandboxFrameError):
        encode({"deep": deep})


@pytest.mark.parametrize("body", [b"", b"[1]", b"nonsense", b"\xff", b"[" * 100_000, b'{"a":' * 100_000])
def test_what_is_no_object_is_an_error(body: bytes) -> None:
    with pytest.raises(SandboxFrameError):
        decode(body)


def test_a_length_is_looked_at_before_anything_is_read(ends: tuple[FrameStream, socket.socket]) -> None:
    stream, other = ends
    other.sendall((LARGEST_FRAME + 1).to_bytes(4, "little"))
    with pytest.raises(SandboxFrameError, match="announces"):
        stream.receive(time.monotonic() + PATIENCE_S)


@pytest.mark.parametrize("sent", [b"", b"\x05", (8).to_bytes(4, "little") + b"{}"])
def test_a_frame_that_stays_away_is_a_timeout_and_one_that_breaks_off_the_end(
    sent: bytes, ends: tuple[FrameStream, socket.socket]
) -> None:
    stream, other = ends
    other.sendall(sent)
    with pytest.raises(TimeoutError):
        stream.receive(time.monotonic() + 0.05)
    other.close()
    assert stream.receive(time.monotonic() + PATIENCE_S) is None


def test_what_came_in_time_is_taken_by_who_looks_late(ends: tuple[FrameStream, socket.socket]) -> None:
    stream, other = ends
    long_ago = time.monotonic() - 100
    with pytest.raises(TimeoutError):
        stream.receive(long_ago)
    FrameStream(other).send(encode({"ready": True}), encode({"second": 2}))
    assert stream.receive(long_ago) == {"ready": True}
    assert stream.receive(long_ago) == {"second": 2}
    with pytest.raises(TimeoutError):
        stream.receive(long_ago)
