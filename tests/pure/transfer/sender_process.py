"""A sender of the world: it computes prompts in chunks, and uses blocks for something else as soon as
nobody has them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from homenode.transfer import scheduler_events as s
from homenode.transfer.state.machines import SenderMachine
from homenode.transfer.state.pages import page_count, tokens_in
from homenode.transfer.wire.message import Buffer, Hello, Published, encode_published
from tests.pure.transfer.process import Process
from tests.pure.transfer.receiver_process import ReceiverProcess
from tests.pure.transfer.world import LIMITS
from tests.pure.transfer.world_memory import identities, layout_of, value


@dataclass
class Sending:
    """A request at a sender."""

    prompt: tuple[int, ...]
    blocks: list[int] = field(default_factory=list)
    next: int = 0
    admitted: bool = False
    told_last: bool = False
    end: str = ""


class SenderProcess(Process):
    """Computes prompts chunk by chunk; equal beginnings share blocks while somebody has them."""

    role = "sender"

    def make(self) -> SenderMachine:
        world = self.world
        if world.offload:
            self.pool = self._memory(layout_of(self.block_size, self.buffer_pages))
        self.requests: dict[str, Sending] = {}
        self.references: Counter[int] = Counter()
        self.known: dict[bytes, int] = {}
        self.free = list(range(self.blocks))
        size = self.buffer_pages * self.layout.block_bytes
        return SenderMachine(
            self.own(), world.settings("sender", size, pd_pull_backpressure_reserve_pct=0.0), self.world.limits
        )

    def hello(self) -> Hello:
        lent = self.pool or self.memory
        buffers = [] if self.world.mode == "push" else [Buffer(lent.id, lent.layout)]
        return Hello((1, 1), self.incarnation, "sender", self.world.mode, self.world.channel, {}, b"\0" * 16, buffers)  # type: ignore[arg-type]

    def owner(self, block: int) -> Any:
        return self.references[block] or None

    def submit(self, ticket: str, prompt: tuple[int, ...], receiver: ReceiverProcess) -> None:
        if not self.alive:
            return
        document = Published(
            role="receiver",
            mode=self.world.mode,  # type: ignore[arg-type]
            channel=self.world.channel,
            incarnation=receiver.incarnation.hex(),
            fingerprint={},
            block_size=receiver.block_size,
            alloc=[receiver.address],
        )
        self.requests[ticket] = Sending(prompt)
        wanted = s.SendWanted(ticket, encode_published(document), len(prompt) - 1, identities(prompt, self.block_size))
        self.engine(wanted)

    def told(self, event: Any) -> None:
        request = self.requests[event.ticket]
        self.world.count[type(event).__name__] += 1
        assert not request.end, f"{event} after {request.end}"
        match event:
            case s.SendAdmitted(_, ticket, held):
                assert not request.admitted
                request.admitted, request.next = True, held
                pages = page_count(len(request.prompt) - 1, self.block_size)
                request.blocks = [self.block_for(request.prompt, page) if page >= held else -1 for page in range(pages)]
                self.world.after(self.world.lag(0.1), lambda: self.later(lambda: self.compute(ticket)))
            case s.SendRefused():
                assert not request.admitted
                request.end = "refused"
            case s.Returned():
                assert not request.admitted or request.told_last, (
                    "the blocks of a request that computes were given back"
                )
                request.end = "returned"
                self.let_go(request)

    def let_go(self, request: Sending) -> None:
        """The blocks nobody has any more are used for something else at once."""
        for block in request.blocks:
            if block < 0:
                continue
            self.references[block] -= 1
            if not self.references[block]:
                del self.references[block]
                self.known = {name: b for name, b in self.known.items() if b != block}
                self.memory.scribble(block)
                self.free.append(block)

    def block_for(self, prompt: tuple[int, ...], page: int) -> int:
        name = identities(prompt, self.block_size)[page]
        if name not in self.known:
            block = self.free.pop(0)
            self.known[name] = block
            self.memory.scribble(block)
        block = self.known[name]
        self.references[block] += 1
        return block

    def compute(self, ticket: str) -> None:
        request = self.requests[ticket]
        if request.told_last:
            return
        pages, first = len(request.blocks), request.next
        past = min(first + self.world.rng.randint(1, 3), pages)
        for page in range(first, past):
            start = page * self.block_size
            values = [
                value(request.prompt, start + i)
                for i in range(tokens_in(page, len(request.prompt) - 1, self.block_size))
            ]
            self.memory.values[request.blocks[page]][: len(values)] = values
        request.next, request.told_last = past, past == pages
        self.engine(s.Computed(ticket, first, request.blocks[first:past], request.told_last))
        if not request.told_last:
            self.world.after(self.world.lag(0.2), lambda: self.later(lambda: self.compute(ticket)))

    def abandon(self, ticket: str) -> None:
        request = self.requests.get(ticket)
        if request is None or request.end or request.told_last:
            return
        request.told_last = True
        self.engine(s.Abandoned(ticket, "aborted"))

    def watch(self) -> None:
        ledger = self.machine.ctx.ledger
        for owner in ledger.by_owner:
            assert owner in self.machine.sessions.tickets or any(
                o.ticket == owner for o in self.machine.sessions.pulls.values()
            )
        assert self.machine.ctx.admission.used <= self.machine.ctx.admission.total
        assert len(self.machine.ctx.ended) <= LIMITS.remembered
