"""Bounds and waits of the sending and receiving machines that are not settings."""

from __future__ import annotations

from dataclasses import dataclass


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
