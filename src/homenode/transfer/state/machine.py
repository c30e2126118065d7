"""Bounds and waits of the sending and receiving machines that are not settings."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Set
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar

import msgspec

from homenode.errors import InternalError
from homenode.transfer.scheduler_events import ToAgent, ToScheduler, TransferStats
from homenode.transfer.wire.message import Buffer, Hello, Message


@dataclass(frozen=True)
class Limits:
    """Times in seconds, sizes in bytes. Tests make them small."""

    shared: bool | None = (
        None  # this process can copy from or into the other's memory; None: as `TransferConfig.one_sided`
    )
    chunk: int = 4 << 20  # bytes copied or sent at once, at least one page
    read: int = 8 << 20  # bytes asked for at once where memory is not shared, at least one page
    in_flight: int = 2  # chunks of one hand-over under way at once: one is copied while the next is fetched
    connect: float = 5.0  # until a connection stands and Hello was exchanged
    room: float = 10.0  # a hand-over waits for room at the longest, at the sender and at the receiver
    unknown: float = 1.0  # the same where nobody knows what computing the prompt takes
    share: float = 0.5  # of the time that computing the prompt takes, what room is waited for
    shortest: float = 0.02  # and at least
    answer: float = 0.25  # an answer of another process, which may have to wait for a CPU, is waited for besides
    contact: float = 1.0  # at least until a connection stands for the first time
    reply: float = 20.0  # the sender waits for OfferReply, however long a hand-over may wait for room
    heartbeat: float = 1.0  # between two renewals, or a third of the lease
    silence: float = 5.0  # no answer to a renewal for so long: nothing more is expected of the other process
    slowest: float = 1.0  # the shortest deadline for bytes on their way
    patience: float = 8.0  # times what the measured rate says
    worst_rate: float = 4e6  # bytes a second; the lowest that is believed, and the first guess
    progress: float = 60.0  # a request waits for pages the sender has not announced
    drained: float = 5.0  # until a sender must have stopped to write, before its targets count as lost
    repeat: float = 0.5  # before Done is said again; doubles up to 16 times this
    longest: float = 3600.0  # a lease ends then, however often it is renewed
    offers: int = 4096  # hand-overs in hand with one process
    announced: int = 1 << 20  # pages of all of these
    reads: int = 4  # times the bytes of a hand-over may be asked for
    remembered: int = 4096  # ended hand-overs, unacknowledged Dones
    backoff: float = 0.5  # before a failed connection is tried again


# Inputs


class FromEngine(msgspec.Struct, frozen=True):
    """The scheduler tells something."""

    message: ToAgent


class Connected(msgspec.Struct, frozen=True):
    """Hello was exchanged and found good. At the sender: answers `Connect`; at the receiver: a sender came, or a done
    channel is open."""

    peer: int
    hello: Hello  # the other side's
    address: str  # what Connect named; empty for one that came
    bases: dict[bytes, int] = {}  # receiver: page p of this buffer can be read in place, as block base + p


class ConnectFailed(msgspec.Struct, frozen=True):
    """Answers `Connect`."""

    address: str
    reason: str


class FromPeer(msgspec.Struct, frozen=True):
    """A frame."""

    peer: int
    message: Message


class PeerLost(msgspec.Struct, frozen=True):
    """The connection ended, or pidfd says the process did. `dead`: the process is known to be gone, so nothing of it
    writes any more.

    May come a second time, with `dead`, for a number lost without. The number's mapped memory stays in reach until the
    machine answers `Close`."""

    peer: int
    reason: str
    dead: bool


class Copied(msgspec.Struct, frozen=True):
    """Answers `Copy`: the digests of the pages as they were read, or None with the reason: an epoch had changed, a read
    was short..."""

    token: int
    digests: list[bytes] | None
    reason: str = ""


class Sent(msgspec.Struct, frozen=True):
    """Answers `SendPages`: the last byte was given to the kernel, or the connection ended."""

    token: int
    ok: bool


Input = FromEngine | Connected | ConnectFailed | FromPeer | PeerLost | Copied | Sent

# Actions


class Connect(msgspec.Struct, frozen=True):
    """Open a control connection (sender: to an alloc address) or a done channel (receiver: to a done address)."""

    address: str


class Send(msgspec.Struct, frozen=True):
    """Send a frame; never waits for the other side (the agent queues, and drops a peer that lets its queue grow past a
    bound)."""

    peer: int
    message: Message


class SendPages(msgspec.Struct, frozen=True):
    """Send a Data header and the bytes of these blocks of a local buffer."""

    token: int
    peer: int
    header: Message
    buffer: bytes
    table: list[int]  # blocks of pages first .. first + count - 1
    tokens: list[int]  # tokens of each of these pages that count


class Copy(msgspec.Struct, frozen=True):
    """Copy pages between two buffers this process has mapped or owns, on a copy thread: `table`s are of the whole
    sequence, page by page of the source (`source_table` holds -1 for pages that are not copied), `epochs` what the
    source's words must be for pages first_page, first_page + 1, ...

    `page_tokens`: of a page; with `digest_only` the source's blocks may be of another size, and `source_table` is then
    a table of blocks."""

    token: int
    source: bytes  # buffer id; the source may be a peer's
    source_table: list[int]
    target: bytes
    target_table: list[int]
    first_page: int
    pages: int
    tokens: int
    page_tokens: int
    epochs: list[int] | None = None
    digest_only: bool = False  # read and digest the source; nothing is written


class Receive(msgspec.Struct, frozen=True):
    """The raw bytes that follow the Data header just taken from `peer` go into these blocks; answered with Copied.

    Comes among the actions that answer the header, or never: the agent then reads the bytes and drops them."""

    token: int
    peer: int
    target: bytes
    target_table: list[int]
    first_page: int
    pages: int
    tokens: int
    page_tokens: int


class Epochs(msgspec.Struct, frozen=True):
    """Write the epoch words of blocks of a local buffer; before anything that depends on it is sent."""

    buffer: bytes
    blocks: list[int]
    epochs: list[int]


class Tell(msgspec.Struct, frozen=True):
    """Post an event to the scheduler."""

    event: ToScheduler


class Close(msgspec.Struct, frozen=True):
    """End a connection, if that has not happened, let go of its mapped memory, and forget the number: it is not heard
    of again."""

    peer: int
    reason: str


Action = Connect | Send | SendPages | Copy | Receive | Epochs | Tell | Close


@dataclass(frozen=True, slots=True)
class Foreseen:
    """The answer of `handle` to an input in the usual case: these copies first; and when they have been made with these
    digests (of each copy's pages), then these `Send` and `Tell` actions, in this order, among others. `then` gives None
    where the digests are not those of the usual case.

    The tables of the copies may be cut to what they need; they read and write the same bytes as those that `handle`
    asks for."""

    copies: tuple[Copy, ...]
    then: Callable[[list[list[bytes]]], list[Send | Tell] | None]


@dataclass(frozen=True, slots=True)
class Expecting:
    """Pages that can be taken as soon as `peer` announces them: pages `first` and so on of `pages`, of `page_tokens`
    each but for the last of `tokens` in all, as many as there are own `blocks` for (-1: they are read where they are).
    None of them may be in `seen`. `bases`: buffers they may be in, with the block that the first page of it is where it
    is read in place.

    When they proved good `handle` will answer for each of `runs` (the first page, and how many), as far as there are
    pages of it, with `Arrived`, which names the blocks of those that are read in place. `holds`: whether nothing has
    come between."""

    ticket: str
    peer: int
    pull_id: int
    first: int
    pages: int
    tokens: int
    page_tokens: int
    digest_bytes: int
    blocks: list[int]
    runs: list[tuple[int, int]]
    seen: Set[int]
    bases: dict[bytes, int]
    holds: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Announcing:
    """Pages that can be announced to `peer` as soon as they were computed: `first` and so on of `pages`, at most
    `most`, of `tokens` from the first on. They lie in the engine's cache. `holds`: whether nothing has come between."""

    ticket: str
    peer: int
    pull_id: int
    first: int
    pages: int
    most: int
    tokens: int
    holds: Callable[[], bool]


class Own(msgspec.Struct, frozen=True):
    """Facts of a machine's own engine: the KV cache's buffer and, with offload, the CPU pool's."""

    cache: Buffer
    pool: Buffer | None
    incarnation: bytes
    done_address: str


class Machine(Protocol):
    """Interface of `machines.SenderMachine` and `machines.ReceiverMachine`."""

    def handle(self, given: Input, now: float, /) -> list[Action]: ...

    def foresee(self, given: Input, now: float, /) -> Foreseen | None: ...

    def announcing(self, most: int, but: Container[str] = ()) -> list[Announcing]: ...

    def expecting(self, most: int, but: Container[str] = ()) -> list[Expecting]: ...

    def tick(self, now: float) -> list[Action]: ...

    def next_deadline(self) -> float | None: ...

    def figures(self) -> TransferStats: ...

    def drain(self, now: float) -> list[Action]: ...

    def lent(self) -> frozenset[str]: ...

    @property
    def idle(self) -> bool: ...


S = TypeVar("S", bound=Enum)

# States of one transfer at each side, and the transitions between them


class ReceiveState(Enum):
    """States of a transfer at its receiver, each with what holds in it."""

    QUEUED = "waits until the quota has pages for it"
    RESERVING = "the scheduler was asked for blocks"
    WITHDRAWN = "was called off before the scheduler has answered"
    RECEIVING = "the sender was answered; pages are announced and read"
    CUT_OFF = "nothing more is announced; what was announced is still read"
    STOPPING = "nothing more is read; what is under way is waited for"
    COMPLETE = "every page is in place"
    REPORTED = "the scheduler was told of the failure, and has yet to take its blocks back"
    ENDED = "the scheduler was told, or has said, that it is over"
    DETACHED = "nothing of the scheduler's belongs to it; the sender's pages may still be read in place"


class SendState(Enum):
    """States of a transfer at its sender, each with what holds in it."""

    WAITING = "waits for a connection and for the quota"
    OFFERED = "the receiver was asked whether it takes it"
    SENDING = "pages are computed, copied and announced"
    CUT_OFF = "nothing more is announced; what was announced may still be read"
    COMPLETE = "the receiver has every page"
    RELEASED = "nobody reads its pages any more"
    ENDED = "nothing is waited for"


def _table(state: type[S], rows: str) -> Mapping[S, frozenset[S]]:
    """Transitions written as lines `FROM: TO TO ...`."""
    split = (row.split(":") for row in rows.strip().splitlines())
    return {state[name.strip()]: frozenset(state[to] for to in after.split()) for name, after in split}


RECEIVE_TRANSITIONS = _table(
    ReceiveState,
    """
    QUEUED: RESERVING RECEIVING WITHDRAWN DETACHED
    RESERVING: RECEIVING WITHDRAWN DETACHED
    WITHDRAWN: ENDED DETACHED
    RECEIVING: CUT_OFF STOPPING COMPLETE
    CUT_OFF: STOPPING COMPLETE REPORTED ENDED
    STOPPING: COMPLETE REPORTED ENDED
    COMPLETE: ENDED
    REPORTED: STOPPING ENDED
    ENDED: DETACHED
    DETACHED:
    """,
)
SEND_TRANSITIONS = _table(
    SendState,
    """
    WAITING: OFFERED ENDED
    OFFERED: SENDING ENDED
    SENDING: CUT_OFF COMPLETE
    CUT_OFF: RELEASED ENDED
    COMPLETE: RELEASED ENDED
    RELEASED: ENDED
    ENDED:
    """,
)


def check_transition(transitions: Mapping[S, frozenset[S]], state: S, after: S) -> S:
    """The state after. InternalError where no transition leads there."""
    if after not in transitions[state]:
        raise InternalError(f"a KV transfer that is {state.name} cannot become {after.name}")
    return after
