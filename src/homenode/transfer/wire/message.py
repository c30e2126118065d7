"""Frames between sender and receiver: msgspec structs in MessagePack, tagged by type. Decoded with bounds, never
unpickled.

Who connects: the sender to the receiver's alloc address (control), the receiver to the sender's done address (done
signals, renewals, reads). Every connection begins with Hello both ways (and Greeted, with a secret). Every frame names
the incarnation of the process it is for; one for another is answered `Gone`. Times on the wire are durations. `pull_id`
names a hand-over within the sender's incarnation (in push mode too).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from homenode.compute.kv_memory import KvLayout

PROTOCOL = (2, 2)  # oldest and newest version spoken
MOST_PAGES = 1 << 16  # of a hand-over
MAX_FRAME = 16 << 20

Id = Annotated[bytes, Meta(min_length=16, max_length=16)]
Ticket = Annotated[str, Meta(min_length=1, max_length=128)]
PullId = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Index = Annotated[int, Meta(ge=0, lt=1 << 31)]
Count = Annotated[int, Meta(ge=0, lt=1 << 31)]
Seconds = Annotated[float, Meta(ge=0, le=1e6)]
Text = Annotated[str, Meta(max_length=4096)]
Identity = Annotated[bytes, Meta(min_length=16, max_length=16)]
Identities = Annotated[list[Identity], Meta(max_length=MOST_PAGES)]
Digest = Annotated[bytes, Meta(min_length=8, max_length=8 * 4096)]  # 8 bytes a KV head
Digests = Annotated[list[Digest], Meta(max_length=MOST_PAGES)]


class PageRef(msgspec.Struct, frozen=True, array_like=True):
    """A page of a registered buffer: never a bare index."""

    buffer: Id
    page: Index
    epoch: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


Places = tuple[Sequence[int], Sequence[int]]
Pages = Annotated[list[PageRef], Meta(max_length=MOST_PAGES)]


class Buffer(msgspec.Struct, frozen=True, array_like=True):
    """A registered buffer. Over a Unix socket its memfd and that of its epoch words follow, in the order of the
    list."""

    id: Id
    layout: KvLayout


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First on every connection. `fingerprint` is compared field by field; `nonce` makes the connection's MAC key its
    own.

    `buffers`: what the other side reads (pull) or writes (push). `carrier` is for the channel alone, such as NIXL's
    metadata. `lane`: the last descriptor is that of a lane, in which this side looks for announcements (`lane.py`).
    """

    protocol: tuple[int, int]
    incarnation: Id
    role: Literal["sender", "receiver"]
    mode: Literal["push", "pull-eager", "pull-delay"]
    channel: Annotated[str, Meta(max_length=64)]
    fingerprint: Annotated[dict[str, str], Meta(max_length=64)]
    nonce: Id
    buffers: Annotated[list[Buffer], Meta(max_length=16)] = []
    carrier: Annotated[bytes, Meta(max_length=1 << 18)] = b""
    lane: bool = False


class Greeted(msgspec.Struct, frozen=True, tag="greeted"):
    """The proof of a secret, after both Hellos, both ways: the first frame with a MAC. Its key comes of the secret and
    both Hellos, so it proves both."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Instead of Hello: why no traffic will be taken."""

    reason: Text
    code: Annotated[str, Meta(max_length=64)]


class Gone(msgspec.Struct, frozen=True, tag="gone"):
    """The frame was for a process that is no more; greet again."""

    incarnation: Id


class Offer(msgspec.Struct, frozen=True, tag="offer"):
    """Sender: these pages will come. `done` is the address of the done channel. `room_s`: so long room may be waited
    for; None: as long as the receiver likes.
    """

    pull_id: PullId
    ticket: Ticket
    tokens: Count
    page_tokens: Count
    identities: Identities
    done: Text
    lease_s: Seconds
    room_s: Seconds | None = None


class OfferReply(msgspec.Struct, frozen=True, tag="offer-reply"):
    """Receiver: which pages it holds (`ready` ones only), and in push mode where the others go; or that there is no
    room (`alloc_failed`), or that this hand-over will not be taken (`refused`).

    `in_place`: pages may be read where they are until Done, in the midst of steps where no epoch can be looked at: as
    long as the receiver's process lives nothing else ends their loan. `targets`: blocks of the receiver (their size may
    be another), in order, from the one on that holds the first position not held.
    """

    pull_id: PullId
    already_sent_indexes: Annotated[list[Index], Meta(max_length=MOST_PAGES)] = []
    targets: Pages = []
    alloc_failed: bool = False
    refused: bool = False
    free_pages: Count = 0
    retry_after_s: Seconds = 0.0
    in_place: bool = False
    reason: Text = ""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Sender, pull modes: `count` pages from `first` on can be read. Push: they were written into their targets;
    nothing is said of places.

    What there is of each page lies packed, little-endian, so that many pages cost little more than one: this is what a
    receiver waits for.
    """

    pull_id: PullId
    first: Index
    count: Annotated[int, Meta(ge=0, le=MOST_PAGES)]
    digests: Annotated[bytes, Meta(max_length=MAX_FRAME)]  # of each page, 8 bytes a KV head
    last: bool
    buffer: Annotated[bytes, Meta(max_length=16)] = b""
    pages: Annotated[bytes, Meta(max_length=4 * MOST_PAGES)] = b""  # of that buffer: uint32 each
    epochs: Annotated[bytes, Meta(max_length=8 * MOST_PAGES)] = b""  # uint64 each


def ready(
    pull_id: int, first: int, digests: Sequence[bytes], last: bool, buffer: bytes = b"", places: Places = ((), ())
) -> Ready:
    """`places`: pages of the buffer, and their epochs."""
    pages, epochs = places
    packed = struct.pack(f"<{len(pages)}I", *pages), struct.pack(f"<{len(epochs)}Q", *epochs)
    return Ready(pull_id, first, len(digests), b"".join(digests), last, buffer, *packed)


def places_of(said: Ready) -> Places:
    """Its pages and their epochs, as many as there are of each."""
    return (
        struct.unpack(f"<{len(said.pages) // 4}I", said.pages[: len(said.pages) // 4 * 4]),
        struct.unpack(f"<{len(said.epochs) // 8}Q", said.epochs[: len(said.epochs) // 8 * 8]),
    )


class Stored(msgspec.Struct, frozen=True, tag="stored"):
    """Receiver, push: pages before `pages` are verified in place; with `ok` false the hand-over has failed."""

    pull_id: PullId
    pages: Count
    ok: bool = True
    reason: Text = ""


class Abandon(msgspec.Struct, frozen=True, tag="abandon"):
    """Sender: no further pages will come; in push mode nothing is written any more either. Answered by Done (pull) or
    Cancel (push)."""

    pull_id: PullId
    reason: Text


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Receiver, push: write no more. Answered by Drained, as Stored with `ok` false is."""

    pull_id: PullId


class Drained(msgspec.Struct, frozen=True, tag="drained"):
    """Sender, push: nothing more is written to the targets of this hand-over."""

    pull_id: PullId


class Done(msgspec.Struct, frozen=True, tag="done"):
    """Receiver, done channel: the sender's pages of this hand-over are not read any more. Repeated until
    acknowledged."""

    pull_id: PullId
    ok: bool = True


class DoneAck(msgspec.Struct, frozen=True, tag="done-ack"):
    """Sender: taken; `late` when the lease had run out, `unknown` when there is no such hand-over."""

    pull_id: PullId
    status: Literal["ok", "late", "unknown", "early"]


class Renew(msgspec.Struct, frozen=True, tag="renew"):
    """Receiver, done channel: these hand-overs are still wanted."""

    pull_ids: Annotated[list[PullId], Meta(max_length=MOST_PAGES)]


class Renewed(msgspec.Struct, frozen=True, tag="renewed"):
    """Sender: for so long; those in `gone` are no more."""

    lease_s: Seconds
    gone: Annotated[list[PullId], Meta(max_length=MOST_PAGES)] = []


class Read(msgspec.Struct, frozen=True, tag="read"):
    """Receiver, done channel, where memory is not shared: send these pages."""

    pull_id: PullId
    first: Index
    count: Annotated[int, Meta(ge=1, le=4096)]


class Data(msgspec.Struct, frozen=True, tag="data"):
    """Header of `nbytes` raw bytes: pages first .. first + count - 1, in the order of `KvMemory.pieces`. Answers Read;
    in push mode it comes unasked.

    `epochs_ok` false: the pages were not there any more; no bytes follow.
    """

    pull_id: PullId
    first: Index
    count: Count
    nbytes: Annotated[int, Meta(ge=0, lt=1 << 40)]
    digests: Digests
    last: bool
    epochs_ok: bool = True


Message = (
    Hello
    | Greeted
    | Refused
    | Gone
    | Offer
    | OfferReply
    | Ready
    | Stored
    | Abandon
    | Cancel
    | Drained
    | Done
    | DoneAck
    | Renew
    | Renewed
    | Read
    | Data
)


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """The contents of a frame: whom it is for (empty before the other's Hello came), and the message."""

    to: Annotated[bytes, Meta(max_length=16)]
    message: Message


_decoder = msgspec.msgpack.Decoder(Envelope)
_encoder = msgspec.msgpack.Encoder()


def encode(envelope: Envelope) -> bytes:
    """The bytes of a frame's body."""
    return _encoder.encode(envelope)


def decode(body: bytes | memoryview) -> Envelope:
    """Raises msgspec.DecodeError (ValidationError among them) for anything that is no envelope within the bounds
    above."""
    return _decoder.decode(body)


# What introduces an engine: the document that it publishes as `GET /kv_transfer`, which the proxy gives to the other
# side. It proves nothing. Whether two engines fit is settled between them, by their Hello.

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
_published_decoder = msgspec.json.Decoder(Published)
_documents_decoder = msgspec.json.Decoder(Published | _Documents)


def encode_published(document: Published) -> bytes:
    """Encode as JSON."""
    return msgspec.json.encode(document)


def encode_documents(documents: Sequence[Published]) -> bytes:
    """Encode what a server of several engines publishes: the document of each of those that are there."""
    return msgspec.json.encode(documents)


def decode_documents(body: bytes) -> Published | list[Published]:
    """Decode what a server publishes: one document, or a list of them where it is a server of several engines. Raises
    as `decode_published`."""
    if len(body) > _MAX_DOCUMENTS:
        raise msgspec.ValidationError(f"published documents of {len(body)} bytes; at most {_MAX_DOCUMENTS} are read")
    try:
        found: Published | list[Published] = _documents_decoder.decode(body)
        return found
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(f"no document: {error}") from None


def decode_published(body: bytes) -> Published:
    """Raises msgspec.DecodeError (ValidationError among them) for anything that is no document within the bounds
    above."""
    if len(body) > MAX_DOCUMENT:
        raise msgspec.ValidationError(f"a published document of {len(body)} bytes; at most {MAX_DOCUMENT} are read")
    try:
        return _published_decoder.decode(body)
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
