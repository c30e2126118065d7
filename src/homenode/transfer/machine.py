"""What goes into a sending or receiving machine (`sender.SenderMachine`, `receiver.ReceiverMachine`), and what comes
out. No I/O, no clock.

    machine.handle(input, now) -> list[Action]
    machine.next_deadline() -> float | None
    machine.tick(now) -> list[Action]
    machine.foresee(input, now) -> Foreseen | None
        changes nothing: what others wait for can be done before the books are kept
    machine.announcing(most, but), .expecting(most, but)
        the same for pages that are announced over a lane (`lane.py`), asked before there is an input. Of at most so
        many hand-overs, the oldest `but` for some tickets. It holds until an input about the same hand-over, and longer
        than it `holds` nobody uses it

`peer` numbers a connected process for the agent: a new number for each connection made, so that nothing of an old one
is mistaken for the new. The agent answers every `Connect`, `Copy`, `Send...` in the end with the input named there, or
with `PeerLost`.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass

import msgspec

from homenode.transfer.seam import ToAgent, ToScheduler
from homenode.transfer.wire.message import Buffer, Hello, Message

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
    """What `handle` will answer to an input in the usual case: these copies first; and when they have been made with
    these digests (of each copy's pages), then these `Send` and `Tell` actions, in this order, among others. `then`
    gives None where the digests are not those of the usual case.

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
    """What a machine knows of its own engine: the KV cache's buffer and, with offload, the CPU pool's."""

    cache: Buffer
    pool: Buffer | None
    incarnation: bytes
    done_address: str
