"""One machine alone, its other side played by the test frame by frame."""

from __future__ import annotations

from typing import Any

from homenode.transfer import scheduler_events as s
from homenode.transfer.setup.settings import TransferConfig
from homenode.transfer.state.machine import (
    Connected,
    Copied,
    Copy,
    FromEngine,
    FromPeer,
    Limits,
    Own,
    PeerLost,
    Send,
    Tell,
)
from homenode.transfer.state.machines import ReceiverMachine, SenderMachine
from homenode.transfer.wire import message as m
from homenode.transfer.wire.message import Buffer, Hello, PageRef, Published, encode_published
from tests.pure.transfer.world_memory import HEADS, layout_of

BLOCK = 32
MINE, THEIRS = b"m" * 16, b"t" * 16
DIGEST = b"d" * 8 * HEADS
ALLOC = "unix:@receiver"


def config(mode: str, channel: str = "shm", **more: Any) -> TransferConfig:
    return TransferConfig(
        transfer_channel=channel, pd_pull_mode=mode != "push", pd_delay_pull=mode == "pull-delay", **more
    )


def document(alloc: str = ALLOC, mode: str = "pull-eager") -> bytes:
    return encode_published(
        Published(
            role="receiver",
            mode=mode,  # type: ignore[arg-type]
            channel="shm",
            incarnation="0" * 32,
            fingerprint={},
            block_size=BLOCK,
            alloc=[alloc],
        )
    )


def ready_of(pull: int, first: int, refs: list[PageRef], digests: list[bytes], last: bool) -> m.Ready:
    """Of pages of one buffer: the first one's."""
    return m.ready(
        pull,
        first,
        digests,
        last,
        refs[0].buffer if refs else b"",
        ([ref.page for ref in refs], [ref.epoch for ref in refs]),
    )


def sent(actions: list[Any], kind: type | None = None) -> list[Any]:
    return [a.message for a in actions if isinstance(a, Send) and (kind is None or isinstance(a.message, kind))]


def told(actions: list[Any]) -> list[Any]:
    return [a.event for a in actions if isinstance(a, Tell)]


def of(actions: list[Any], kind: type) -> list[Any]:
    return [a for a in actions if isinstance(a, kind)]


class Bench:
    """Time stands where the test puts it."""

    machine: Any

    def __init__(self) -> None:
        self.now = 0.0

    def feed(self, what: Any) -> list[Any]:
        return self.machine.handle(what, self.now)

    def engine(self, message: Any) -> list[Any]:
        return self.feed(FromEngine(message))

    def frame(self, peer: int, message: Any) -> list[Any]:
        return self.feed(FromPeer(peer, m.decode(m.encode(m.Envelope(b"", message))).message))

    def lost(self, peer: int, dead: bool = False) -> list[Any]:
        return self.feed(PeerLost(peer, "gone", dead))

    def at(self, now: float) -> list[Any]:
        self.now = now
        return self.machine.tick(now)

    def copies(self, actions: list[Any], digest: bytes = DIGEST) -> list[Any]:
        """Answer all copies, also those that follow; returns what else came."""
        rest = [a for a in actions if not isinstance(a, Copy)]
        for copy in of(actions, Copy):
            rest += self.copies(self.feed(Copied(copy.token, [digest] * copy.pages)), digest)
        return rest


class SenderBench(Bench):
    """Control connections are numbered from 1, done channels from 101."""

    def __init__(
        self, mode: str = "pull-eager", channel: str = "shm", pages: int = 64, limits: Limits | None = None, **more: Any
    ) -> None:
        super().__init__()
        self.mode = mode
        layout = layout_of(BLOCK, 256)
        settings = config(mode, channel, pd_role="sender", pd_buffer_size=pages * layout.block_bytes, **more)
        self.own = Own(
            Buffer(MINE, layout),
            Buffer(b"p" * 16, layout_of(BLOCK, pages)) if settings.pd_use_cpu_offload else None,
            MINE,
            "unix:@done",
        )
        self.machine = SenderMachine(self.own, settings, limits or Limits(chunk=1 << 20, read=1 << 20))

    def hello(self, name: bytes = THEIRS) -> Hello:
        buffers = [Buffer(name, layout_of(BLOCK, 256))] if self.mode == "push" else []
        return Hello((1, 1), name, "receiver", self.mode, "shm", {}, b"\0" * 16, buffers)  # type: ignore[arg-type]

    def want(self, ticket: str, pages: int, alloc: str = ALLOC, compute_s: float = 0.0) -> list[Any]:
        names = [bytes([n % 256]) * 16 for n in range(pages)]
        return self.engine(s.SendWanted(ticket, document(alloc, self.mode), pages * BLOCK, names, compute_s))

    def connect(self, peer: int = 1, name: bytes = THEIRS, alloc: str = ALLOC) -> list[Any]:
        return self.feed(Connected(peer, self.hello(name), alloc))

    def done_channel(self, peer: int = 101, name: bytes = THEIRS) -> list[Any]:
        return self.feed(Connected(peer, self.hello(name), ""))

    def announced(self, ticket: str = "t", pages: int = 3, pull: int = 0) -> None:
        """A hand-over whose pages have all been announced."""
        self.want(ticket, pages)
        if not pull:
            self.connect()
            self.done_channel()
        self.frame(1, m.OfferReply(pull))
        first = 10 * (pull + 1)
        actions = self.copies(self.engine(s.Computed(ticket, 0, list(range(first, first + pages)), True)))
        assert len(sent(actions, m.Ready)) >= 1


class ReceiverBench(Bench):
    """Control connections are numbered from 1, done channels from 101."""

    def __init__(
        self, mode: str = "pull-eager", channel: str = "shm", pages: int = 64, limits: Limits | None = None, **more: Any
    ) -> None:
        super().__init__()
        self.mode = mode
        layout = layout_of(BLOCK, 256)
        settings = config(mode, channel, pd_role="receiver", pd_buffer_size=pages * layout.block_bytes, **more)
        self.machine = ReceiverMachine(
            Own(Buffer(MINE, layout), None, MINE, "unix:@mine"), settings, limits or Limits(chunk=1 << 20, read=1 << 20)
        )

    def hello(self, name: bytes = THEIRS) -> Hello:
        buffers = [] if self.mode == "push" else [Buffer(name, layout_of(BLOCK, 256))]
        return Hello((1, 1), name, "sender", self.mode, "shm", {}, b"\0" * 16, buffers)  # type: ignore[arg-type]

    def connect(self, peer: int = 1, name: bytes = THEIRS) -> list[Any]:
        return self.feed(Connected(peer, self.hello(name), ""))

    def done_channel(self, peer: int = 101, name: bytes = THEIRS) -> list[Any]:
        return self.feed(Connected(peer, self.hello(name), f"unix:@done{name.hex()}"))

    def offer(
        self, pull: int, ticket: str, pages: int, peer: int = 1, name: bytes = THEIRS, room_s: float | None = None
    ) -> list[Any]:
        names = [bytes([n % 256]) * 16 for n in range(pages)]
        done = f"unix:@done{name.hex()}"
        return self.frame(peer, m.Offer(pull, ticket, pages * BLOCK, BLOCK, names, done, 60.0, room_s))

    def open(self, ticket: str = "t", pages: int = 3, pull: int = 0, peer: int = 1, name: bytes = THEIRS) -> list[Any]:
        """An offer for which there is room."""
        actions = self.offer(pull, ticket, pages, peer, name)
        if self.mode == "pull-delay":
            return actions
        first = 10 * (pull + 1) + 100 * (peer - 1)
        return actions + self.engine(s.Reserved(ticket, list(range(first, first + pages)), 0))

    def ready(self, first: int, count: int, last: bool, pull: int = 0, name: bytes = THEIRS, epoch: int = 0) -> m.Ready:
        refs = [] if self.mode == "push" else [PageRef(name, 50 + first + n, epoch) for n in range(count)]
        return ready_of(pull, first, refs, [DIGEST] * count, last)
