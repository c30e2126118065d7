"""Topics about which a worker calls its engine, or another worker: what comes on a connection, said in its greeting
(`net.greeting`)."""

from __future__ import annotations

import socket

import msgspec

from homenode.net import greeting
from homenode.net.greeting import Credentials
from homenode.net.message_frames import decode_body


class Key(msgspec.Struct, frozen=True):
    """Rows of a generation that go to a stage, as its reader number `reader` gets them."""

    generation: int
    stage: int
    reader: int


class IAm(msgspec.Struct, frozen=True, tag=True):
    """Topic: the connection between the engine and this worker, in its `life`-th process."""

    worker: int
    life: int


class RowsOffer(msgspec.Struct, frozen=True, tag=True):
    """Topic: these rows are awaited at this address."""

    key: Key
    address: str


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Topic: where are these rows awaited? Answered with the address as one frame, or with the end of the stream."""

    key: Key


class Rows(msgspec.Struct, frozen=True, tag=True):
    """Topic: these rows come on this connection."""

    key: Key


class Group(msgspec.Struct, frozen=True):
    """The ranks of a stage in a generation."""

    generation: int
    stage: int


class Seated(msgspec.Struct, frozen=True, tag=True):
    """Topic: this rank of `ranks` is there, and those of other hosts reach its memory at `address`. Answered with the
    addresses of all ranks in their order as one frame, once all are there, or with the end of the stream.
    """

    group: Group
    rank: int
    ranks: int
    address: str


class MemoryRequest(msgspec.Struct, frozen=True, tag=True):
    """Topic: a rank of the same host asks for the group's memory. Answered with its descriptor and, as one frame, the
    address as in `Seated`.
    """

    group: Group
    rank: int


class Values(msgspec.Struct, frozen=True, tag=True):
    """Topic: what this rank of another host writes comes on this connection."""

    group: Group
    rank: int


Topic = IAm | RowsOffer | Ask | Rows | Seated | MemoryRequest | Values


def call(address: str, credentials: Credentials, topic: Topic, timeout_s: float) -> socket.socket:
    """Connect to HOST:PORT, make sure of who is there, and say what about. PeerError as of `net.greeting.call`."""
    return greeting.call(address, credentials, encode_topic(topic), timeout_s)


def accept_call(sock: socket.socket, credentials: Credentials, timeout_s: float) -> tuple[socket.socket, Topic]:
    """Make sure of who has called: the socket to go on with, and what about. PeerError for a stranger, and the
    connection is closed.
    """
    sock, body = greeting.accept_call(sock, credentials, timeout_s)
    try:
        return sock, decode_topic(body)
    except BaseException:
        sock.close()
        raise


def encode_topic(topic: Topic) -> bytes:
    """A topic as it goes into the greeting."""
    return msgspec.msgpack.encode(topic)


def decode_topic(body: bytes) -> Topic:
    """The topic of a greeting. PeerError for what is none."""
    topic: Topic = decode_body(body, Topic)
    return topic
