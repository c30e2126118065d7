"""What an engine publishes about its part in handing KV over: the body of `GET /kv_transfer`, which the proxy gives to
the other side.

The document introduces; it proves nothing. Whether two engines fit is settled between them, by their Hello.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from homenode.transfer.wire.message import PROTOCOL

MAX_DOCUMENT = 1 << 16
MAX_ENGINES = 1024
_MAX_DOCUMENTS = 1 << 20  # of all engines of a server

Role = Literal["sender", "receiver"]
Mode = Literal["push", "pull-eager", "pull-delay"]
Address = Annotated[str, Meta(min_length=1, max_length=512)]
Addresses = Annotated[list[Address], Meta(max_length=1024)]
Word = Annotated[str, Meta(max_length=1024)]


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """One for each engine. An address is `unix:@NAME` (abstract), `unix:/PATH` or `tcp:HOST:PORT` (`tcp:[HOST]:PORT`
    for IPv6); one for each tensor-parallel rank.

    `incarnation`: of the process, in hexadecimal: another one after a restart. `fingerprint`: what must agree, see
    `engine.kv_transfer.fingerprint`.
    """

    role: Role
    mode: Mode
    channel: Annotated[str, Meta(min_length=1, max_length=64)]
    incarnation: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    fingerprint: Annotated[dict[Word, Word], Meta(max_length=64)]
    block_size: Annotated[int, Meta(ge=1, le=1 << 20)]  # tokens of a KV block, the sender's page
    alloc: Addresses = []  # receiver: where senders ask for room
    init: Addresses = []  # receiver: where the first contact may be made; the same process answers
    done: Addresses = []  # sender: where receivers tell that they are done
    protocol: tuple[int, int] = PROTOCOL
    host: Annotated[str, Meta(max_length=128)] = ""  # names the machine: Unix sockets reach no other


_Documents = Annotated[list[Published], Meta(min_length=1, max_length=MAX_ENGINES)]
_decoder = msgspec.json.Decoder(Published)
_server_decoder = msgspec.json.Decoder(Published | _Documents)


def encode(document: Published) -> bytes:
    """As JSON."""
    return msgspec.json.encode(document)


def encode_several(documents: Sequence[Published]) -> bytes:
    """What a server of several engines publishes: the document of each of those that are there."""
    return msgspec.json.encode(documents)


def decode_server(body: bytes) -> Published | list[Published]:
    """What a server publishes: one document, or a list of them where it is a server of several engines. Raises as
    `decode`."""
    if len(body) > _MAX_DOCUMENTS:
        raise msgspec.ValidationError(f"published documents of {len(body)} bytes; at most {_MAX_DOCUMENTS} are read")
    try:
        found: Published | list[Published] = _server_decoder.decode(body)
        return found
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(f"no document: {error}") from None


def decode(body: bytes) -> Published:
    """Raises msgspec.DecodeError (ValidationError among them) for anything that is no document within the bounds
    above."""
    if len(body) > MAX_DOCUMENT:
        raise msgspec.ValidationError(f"a published document of {len(body)} bytes; at most {MAX_DOCUMENT} are read")
    try:
        return _decoder.decode(body)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(f"no document: {error}") from None


_MOST_SHOWN = 120  # characters of a value in a message


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Each fact in which the two do not agree, in words; empty when KV may be handed over. `protocol` is a range: an
    overlap is enough."""
    found = []
    for name in (*ours, *(name for name in theirs if name not in ours)):
        mine, other = ours.get(name), theirs.get(name)
        if mine != other and not (name == "protocol" and _overlap(mine, other)):
            found.append(f"{name} is {_seen(mine)} here and {_seen(other)} there")
    return found


def _seen(value: str | None) -> str:
    return "not told" if value is None else repr(value[:_MOST_SHOWN])


def _overlap(mine: str | None, other: str | None) -> bool:
    first, second = _versions(mine), _versions(other)
    return first is not None and second is not None and max(first[0], second[0]) <= min(first[1], second[1])


def _versions(text: str | None) -> tuple[int, int] | None:
    oldest, _, newest = (text or "").partition("-")
    if not (oldest.isdecimal() and newest.isdecimal() and len(oldest) < 8 and len(newest) < 8):
        return None
    return int(oldest), int(newest)
