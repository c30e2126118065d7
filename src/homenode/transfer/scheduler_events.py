"""What an engine's scheduler and its transfer agent tell each other about KV blocks. Plain values; both ends are state
machines.

A *ticket* names one hand-over: the proxy draws it, the sender (prefill) and the receiver (decode) see the same one. Of
a prompt of n tokens the KV of the first n - 1 positions is handed over; the receiver computes the last one itself, to
draw from its logits.

Positions lie in *pages*: the sender's KV blocks. A page is known by its identity: the keyed hash of all tokens up to
its end (`kv.prefix.HashChain`), for the last, partly filled one of all tokens up to position n - 2. Identities can be
told before anything is computed.

Sender                                              Receiver
  scheduler: SendWanted    (nothing computed yet)     agent: Offered        (what will come; `reserve`: take blocks
                                                                             for it now)
  agent:     SendAdmitted | SendRefused               scheduler: Reserved | ReservationFailed
  scheduler: Computed...   (as chunks are computed)   agent: Arrived...     (verified, in the blocks)
  scheduler: Abandoned     (the request ended early)  scheduler: Fetch      (the request is here; pull-delay: it
                                                                             runs now, fill these blocks)
  agent:     Returned      (the blocks are free)      agent: Failed         (no more will come, and nobody writes
                                                                             any more)
                                                             or Quarantined (push: no more will come, but somebody may
                                                                             still write)
                                                      scheduler: Claimed | Stopped
                                                      agent: Forgotten      (the blocks of a ticket no request came
                                                                             for are free)

Pages that are read in place, where the sender has them: the table of Reserved or Fetch names no block for them (-1),
`Arrived` lists their foreign blocks, and `Unused` follows in the end, once for each ticket with such an `Arrived`,
whatever else becomes of the ticket.

How a ticket ends. Sender: with exactly one of SendRefused (only in the place of SendAdmitted) and Returned; Abandoned
is always answered by one of the two. Receiver: with Claimed, with the Failed that answers Stopped, or with Forgotten.
Claimed follows the last Arrived, Failed or Quarantined, never earlier. Messages about a ticket that has ended cross the
news of its end; they are ignored, but for Fetch and Stopped, which are answered Failed.
"""

from __future__ import annotations

import msgspec


class KvTicket(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of a request that says its KV is handed over. `peer`: what the other side publishes (see
    `published.Published`), as JSON. `engine`: of several engines at the receiver, the incarnation of the one that the
    KV goes to; empty: there is but one."""

    ticket: str
    sends: bool  # True at the sender, False at the receiver
    peer: bytes = b""
    engine: str = ""


# From the scheduler to the agent


class SendWanted(msgspec.Struct, frozen=True, tag=True):
    """Sender: a request came whose first `tokens` positions are to be handed over. It is not computed before the agent
    has answered. `compute_s`: what computing them would take, by what steps took of late; 0: nobody knows."""

    ticket: str
    peer: bytes
    tokens: int
    identities: list[bytes]  # of each page
    compute_s: float = 0.0


class Computed(msgspec.Struct, frozen=True, tag=True):
    """Sender: pages first, first + 1, ... of the ticket lie in these KV blocks, complete, and stay there until
    `Returned`.

    Contiguous: `first` is one past the last page told of, at the beginning `held` of SendAdmitted or 0. Once with
    `last`, if need be without blocks.
    """

    ticket: str
    first: int
    blocks: list[int]
    last: bool  # these are the last ones


class Abandoned(msgspec.Struct, frozen=True, tag=True):
    """Sender: the request ended before all its pages were computed. The blocks told of stay until `Returned`."""

    ticket: str
    reason: str


class Reserved(msgspec.Struct, frozen=True, tag=True):
    """Receiver: the answer to `Offered` with `reserve`. Position p belongs into blocks[p // block size]; the first
    `held` pages are there already and must not be written. -1, only with `in_place`: that page is to be read where it
    is."""

    ticket: str
    blocks: list[int]
    held: int  # pages


class ReservationFailed(msgspec.Struct, frozen=True, tag=True):
    """Receiver: the other answer: nothing was taken."""

    ticket: str
    free_blocks: int
    reason: str


class Fetch(msgspec.Struct, frozen=True, tag=True):
    """Receiver: the ticket's request is to run. Without a reservation: fill these blocks, apart from the first `held`
    pages.

    With one: told as soon as the request is here, and no more than that; it ends the time limit of a ticket that no
    request came for.
    """

    ticket: str
    blocks: list[int]
    held: int  # pages


class Claimed(msgspec.Struct, frozen=True, tag=True):
    """Receiver: the request has taken over the first `tokens` positions; the ticket is done with. 0: all was there, or
    over, but nobody wants it any more. Comes without `Fetch` where everything was found in the prefix cache
    meanwhile."""

    ticket: str
    tokens: int


class Unused(msgspec.Struct, frozen=True, tag=True):
    """Receiver: no step names the foreign blocks of this ticket, and none will. Comes once if an `Arrived` listed
    foreign blocks, with the end of the ticket or long after it; and for such an `Arrived` of a ticket that is not known
    any more."""

    ticket: str


class Stopped(msgspec.Struct, frozen=True, tag=True):
    """Receiver: the request ended before its KV had arrived, or the blocks of a reservation without a request are
    needed elsewhere. To be answered with `Failed` when nobody writes to its blocks any more."""

    ticket: str


class Released(msgspec.Struct, frozen=True, tag=True):
    """Either side: whoever drew the ticket has given it up. Ignored for one that is unknown or done with; at the
    receiver, for one whose request is here (that is ended by the request's own end). A ticket that is released before
    it is offered is refused when it comes."""

    ticket: str
    reason: str


# From the agent to the scheduler (events; the loop adds the time)


class SendAdmitted(msgspec.Struct, frozen=True, tag=True):
    """Sender: there is room for the pages; compute. The first `held` pages are at the receiver already and need not be
    told as computed."""

    now: float
    ticket: str
    held: int = 0


class SendRefused(msgspec.Struct, frozen=True, tag=True):
    """Sender: the request is to end with this reason; another sender, or the receiver itself, may compute it."""

    now: float
    ticket: str
    reason: str
    retry_after_s: float | None = None


class Returned(msgspec.Struct, frozen=True, tag=True):
    """Sender: nobody reads the ticket's blocks any more."""

    now: float
    ticket: str


class Offered(msgspec.Struct, frozen=True, tag=True):
    """Receiver: the KV of `tokens` positions will come, in pages of `page_tokens`. With `reserve` blocks are wanted
    now, else at `Fetch`."""

    now: float
    ticket: str
    tokens: int
    page_tokens: int
    identities: list[bytes]
    reserve: bool
    in_place: bool = (
        False  # full pages can be read where they are: they want no blocks. Pages are then as large as blocks
    )


class Arrived(msgspec.Struct, frozen=True, tag=True):
    """Receiver: the first `tokens` positions (counted from the beginning, held ones included) lie verified in the
    ticket's blocks, or in place: of those that were not told of before, pages first, first + 1, ... lie in these
    foreign `blocks`, numbered behind the engine's own, to be read until `Unused`, never to be written."""

    now: float
    ticket: str
    tokens: int
    first: int = 0
    blocks: list[int] = []


class Failed(msgspec.Struct, frozen=True, tag=True):
    """Receiver: no more will come, and nobody writes to the ticket's blocks from here on. What arrived stays good."""

    now: float
    ticket: str
    reason: str


class Quarantined(msgspec.Struct, frozen=True, tag=True):
    """Receiver, push into shared memory: no more will come, but the sender, silent or out of reach, may still write to
    the ticket's blocks from `tokens` (those that arrived) on. They must be neither used nor given away before
    `Forgotten`, which may never come; the request goes on in others."""

    now: float
    ticket: str
    tokens: int
    reason: str


class Forgotten(msgspec.Struct, frozen=True, tag=True):
    """Receiver: the ticket is over and its blocks are free: no request came for it in time, it was called off before
    `Reserved`, or nobody can write any more after `Quarantined`. As `Failed`, nobody writes any more."""

    now: float
    ticket: str


ToAgent = (
    SendWanted | Computed | Abandoned | Reserved | ReservationFailed | Fetch | Claimed | Stopped | Unused | Released
)
ToScheduler = SendAdmitted | SendRefused | Returned | Offered | Arrived | Failed | Quarantined | Forgotten
