"""A receiver of the world: it gives blocks to what comes, checks every value that arrives, and has requests that come,
wait or are given up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from homenode.transfer import scheduler_events as s
from homenode.transfer.state.machines import ReceiverMachine
from homenode.transfer.state.pages import first_target, page_count
from homenode.transfer.wire.message import Buffer, Hello
from tests.pure.transfer.process import Process
from tests.pure.transfer.world import LIMITS
from tests.pure.transfer.world_memory import identities, value


@dataclass
class Request:
    """A ticket at a receiver."""

    prompt: tuple[int, ...]
    state: str = "unknown"  # offered, ended
    blocks: list[int] = field(default_factory=list)
    mine: list[int] = field(default_factory=list)
    held: int = 0
    here: bool = False
    fetched: bool = False
    stopped: bool = False
    arrived: int = 0
    outcome: str = ""  # of the HTTP request: how many tokens it took over, in words


class ReceiverProcess(Process):
    """Takes what comes, checks what it takes."""

    role = "receiver"

    def make(self) -> ReceiverMachine:
        self.requests: dict[str, Request] = {}
        self.prompts: dict[str, tuple[int, ...]] = {}
        self.free = list(range(self.blocks))
        self.who: dict[int, str] = {}
        size = self.buffer_pages * self.layout.block_bytes
        return ReceiverMachine(self.own(), self.world.settings("receiver", size), self.world.limits)

    def hello(self) -> Hello:
        buffers = [Buffer(self.memory.id, self.layout)] if self.world.mode == "push" else []
        return Hello((1, 1), self.incarnation, "receiver", self.world.mode, self.world.channel, {}, b"\0" * 16, buffers)  # type: ignore[arg-type]

    def owner(self, block: int) -> Any:
        return self.who.get(block)

    def allocate(self, ticket: str, request: Request, page_tokens: int) -> bool:
        n = len(request.prompt) - 1
        count = page_count(n, self.block_size)
        if count > len(self.free):
            return False
        fresh = [self.free.pop(0) for _ in range(count)]
        held = self.world.rng.choice([0, 0, 0, 1, 2, 99])
        pages = page_count(n, page_tokens)
        held = min(held, pages)
        if held < pages and held * page_tokens % self.block_size:
            held = 0
        request.held, request.blocks, request.mine = held, fresh, fresh
        for position in range(min(held * page_tokens, n)):
            self.memory.write(fresh, position, value(request.prompt, position))
        first = first_target(held, page_tokens, self.block_size) if held < pages else count
        for index, block in enumerate(fresh):
            if index >= first:
                self.who[block] = ticket
        return True

    def let_go(self, request: Request) -> None:
        for block in request.mine:
            self.who.pop(block, None)
            self.memory.scribble(block)
            self.free.append(block)
        request.mine = []

    def told(self, event: Any) -> None:
        world, ticket = self.world, event.ticket
        world.count[type(event).__name__] += 1
        if isinstance(event, s.Offered):
            return self.offered(event)
        request = self.requests.get(ticket)
        if request is None or request.state == "ended":
            return None
        match event:
            case s.Arrived(_, _, tokens):
                assert tokens > request.arrived or tokens == len(request.prompt) - 1
                request.arrived = tokens
                self.check(request, tokens)
                if tokens == len(request.prompt) - 1 and (request.stopped or request.here):
                    self.end(ticket, "complete" if not request.stopped else "stopped")
            case s.Failed():
                if request.stopped or request.here:
                    self.end(ticket, f"failed at {request.arrived}")
                else:
                    request.state = "failed"
            case s.Quarantined(_, _, tokens):
                assert self.world.mode == "push" and self.world.shared
                self.check(request, tokens)
                request.state = "quarantined"
                request.outcome = request.outcome or "quarantined"
            case s.Forgotten():
                request.outcome = request.outcome or "forgotten"
                request.state = "ended"
                self.let_go(request)
        return None

    def check(self, request: Request, tokens: int) -> None:
        """The promise: what arrived is right."""
        size = self.block_size
        for position in range(tokens):
            assert self.memory.read(request.blocks, position, size) == value(request.prompt, position), (
                f"position {position} is wrong"
            )

    def end(self, ticket: str, outcome: str) -> None:
        """The request takes over what arrived."""
        request = self.requests[ticket]
        self.check(request, request.arrived)
        request.outcome = request.outcome or outcome
        if not request.stopped:
            self.engine(s.Claimed(ticket, request.arrived))
        request.state = "ended"
        self.let_go(request)

    def offered(self, event: s.Offered) -> None:
        prompt = self.prompts[event.ticket]
        assert event.identities == identities(prompt, event.page_tokens)
        assert event.ticket not in self.requests or self.requests[event.ticket].state in ("unknown", "ended")
        request = self.requests.setdefault(event.ticket, Request(prompt))
        request.page_tokens = event.page_tokens  # type: ignore[attr-defined]
        request.arrived = 0
        if not event.reserve:
            request.state = "offered"
        elif self.world.rng.random() < self.world.full or not self.allocate(event.ticket, request, event.page_tokens):
            request.state = "ended"
            request.outcome = "no room"
            self.engine(s.ReservationFailed(event.ticket, len(self.free), "full"))
        else:
            request.state = "offered"
            self.engine(s.Reserved(event.ticket, request.blocks, request.held))

    def ask(self, ticket: str, prompt: tuple[int, ...]) -> None:
        """The request with the ticket comes."""
        if not self.alive:
            return None
        if self.frozen:
            self.thawed.append(lambda: self.ask(ticket, prompt))
            return None
        request = self.requests.get(ticket)
        if request is None or request.state in ("unknown", "ended", "quarantined"):
            return None
        request.here = True
        if request.state == "failed" or request.arrived == len(prompt) - 1:
            return self.end(ticket, "late")
        if self.world.mode != "pull-delay":
            return self.engine(s.Fetch(ticket, request.blocks, request.held))
        self.world.after(self.world.lag(0.5), lambda: self.later(lambda: self.fetch(ticket)))
        return None

    def fetch(self, ticket: str) -> None:
        """Admission, with blocks for all of it."""
        request = self.requests[ticket]
        if request.state == "ended" or request.stopped:
            return
        if not self.allocate(ticket, request, request.page_tokens):  # type: ignore[attr-defined]
            self.world.after(0.3, lambda: self.later(lambda: self.fetch(ticket)))
            return
        self.engine(s.Fetch(ticket, request.blocks, request.held))

    def abort(self, ticket: str) -> None:
        request = self.requests.get(ticket)
        if request is None or request.state in ("unknown", "ended", "quarantined") or request.stopped:
            return None
        request.stopped = True
        if request.state == "failed":
            return self.end(ticket, "stopped")
        self.engine(s.Stopped(ticket))
        return None

    def watch(self) -> None:
        ledger = self.machine.ctx.ledger
        assert all(len(ledger.owners(page)) == 1 for page in range(ledger.pages) if ledger.owners(page))
        assert set(ledger.by_owner) <= set(self.machine.sessions.tickets)
        assert len(self.machine.ctx.dones) <= LIMITS.remembered
