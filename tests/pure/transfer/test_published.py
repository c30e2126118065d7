"""The document an engine publishes: what goes out comes in again, and nothing else does."""

from __future__ import annotations

import msgspec
import pytest

from homenode.transfer.wire.message import MAX_DOCUMENT, Published, decode_published, encode_published

DOCUMENT = Published(
    role="receiver",
    mode="pull-delay",
    channel="shm",
    incarnation="0f" * 16,
    fingerprint={"weights": "1234"},
    block_size=64,
    alloc=["unix:@homenode-0f"],
    host="machine",
)


def test_there_and_back() -> None:
    assert decode_published(encode_published(DOCUMENT)) == DOCUMENT


def test_a_newer_engine_may_say_more() -> None:
    body = msgspec.json.decode(encode_published(DOCUMENT))
    assert decode_published(msgspec.json.encode({**body, "mood": "good"})) == DOCUMENT


@pytest.mark.parametrize(
    "change",
    [
        {"role": "proxy"},
        {"mode": "shove"},
        {"incarnation": "xyz"},
        {"incarnation": "0f" * 15},
        {"block_size": 0},
        {"block_size": 1 << 40},
        {"alloc": [""]},
        {"alloc": ["unix:@x"] * 2000},
        {"fingerprint": {str(i): "" for i in range(65)}},
        {"fingerprint": {"a": "x" * 2000}},
        {"channel": ""},
        {"protocol": [1]},
        {"host": "x" * 200},
    ],
)
def test_what_is_out_of_bounds_is_refused(change: dict[str, object]) -> None:
    body = msgspec.json.decode(encode_published(DOCUMENT))
    with pytest.raises(msgspec.DecodeError):
        decode_published(msgspec.json.encode({**body, **change}))


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"\xff", b'{"role": "\xff"}', b"[" * 60_000, b" " * (MAX_DOCUMENT + 1)]
)
def test_what_is_no_document(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_published(body)
