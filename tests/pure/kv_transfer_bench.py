"""A scheduler whose agent is played by the test: it writes into KV blocks, reads from them, and is as slow and as
careless as an agent may be.

As long as it has not said that nothing more comes it writes rubbish wherever it is allowed to, and as long as it has
not returned a block it reads what is in it. A scheduler that computes from KV before it has arrived, or that gives away
a block too early, is found out by the scripted worker, which reads back all that it uses, or by the readers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from homenode.engine.kv.block_source import BlockSource
from homenode.engine.kv.prefix import HashChain
from homenode.engine.scheduler.events import Instruction, ToTransfer
from homenode.engine.scheduler_config import SchedulerConfig
from homenode.engine.step import Step, WorkerLimits
from homenode.testing.scripted_executor import ScriptedExecutor, checksum
from homenode.transfer import scheduler_events
from tests.pure.schedule_bench import Bench

SEED = b"seed"  # of the bench's scheduler


def sums(tokens: list[int]) -> list[tuple[int, int]]:
    """What the scripted worker keeps for each position in the place of keys and values."""
    found, total = [], 0
    for position, token in enumerate(tokens):
        total = checksum([token], total)
        found.append((position, total))
    return found


Content = list[tuple[int, int] | None]  # of positions of a hand-over; None: whatever it is


@dataclass
class Coming:
    """A ticket at a receiver, as its agent knows it."""

    offer: scheduler_events.Offered
    content: Content
    salt: str
    blocks: list[int] = field(default_factory=list)
    arrived: int = 0
    refused: str = ""
    fetched: bool = False
    writes: bool = False  # somebody may write to its blocks
    stopped: bool = False
    quarantined: bool = False
    claimed: int | None = None

    @property
    def open(self) -> bool:
        """It can still arrive or fail."""
        return self.claimed is None and self.writes and not self.stopped and not self.quarantined


@dataclass
class Going:
    """A ticket at a sender, as its agent knows it."""

    wanted: scheduler_events.SendWanted
    content: Content
    admitted: bool = False
    blocks: dict[int, int] = field(default_factory=dict)  # page -> block, told of and not returned
    next_page: int = 0
    last: bool = False
    abandoned: str = ""
    over: bool = False


class KeepingExecutor(ScriptedExecutor):
    """A lost step takes the worker's sequences with it, but not what is in the KV memory."""

    def _lose_everything(self) -> None:
        memory = self.memory
        super()._lose_everything()
        self.memory = memory


class HandoverBench(Bench):
    """The bench with an agent. Any message of the scheduler that its agent could not expect is an AssertionError."""

    def __init__(
        self,
        config: SchedulerConfig | None = None,
        *,
        limits: WorkerLimits | None = None,
        lookahead: int = 0,
        caching: bool = True,
        fault: Callable[[Step], Exception | None] | None = None,
        rng: random.Random | None = None,
        stages: int = 1,
        drafter: Callable[[Sequence[int]], Sequence[int]] | None = None,
        stores: Sequence[BlockSource] = (),
    ) -> None:
        super().__init__(
            config, limits=limits, lookahead=lookahead, caching=caching, fault=fault, stages=stages, stores=stores
        )
        self.executor = KeepingExecutor(
            self.limits,
            max_tokens=self.config.max_num_batched_tokens,
            max_sequences=self.config.max_num_seqs,
            fault=fault,
            stages=stages,
            drafter=drafter,
        )
        self.rng = rng or random.Random(1)
        self.messages: list[scheduler_events.ToAgent] = []
        self.coming: dict[str, Coming] = {}
        self.going: dict[str, Going] = {}
        self.prompts: dict[str, list[int]] = {}  # of tickets that are sent

    def content_of(self, tokens: list[int], size: int) -> Content:
        """What is handed over of so many positions: where there are states, whole pages, and behind them the state."""
        found: Content = [*sums(tokens)]
        pages = self.limits.state_pages
        if pages or self.limits.whole_pages:
            found += [None] * (-len(found) % size) + [found[-1] if found else None] * pages * size
        return found

    # Moves of a receiver's agent

    def offer(
        self, prompt: list[int], *, reserve: bool = True, page_tokens: int = 0, salt: str = "", lie: bool = False
    ) -> str:
        """The KV of all but the last token of `prompt` is to come. With `lie` it is of other tokens."""
        page_tokens, ticket = page_tokens or self.limits.block_size, f"in{len(self.coming)}"
        tokens = [token + 1 for token in prompt] if lie else prompt
        chain, content = HashChain(SEED, page_tokens, salt), self.content_of(tokens[:-1], page_tokens)
        identities = chain.identities(tokens, len(prompt) - 1, self.limits.state_pages)
        offer = scheduler_events.Offered(self.now, ticket, len(content), page_tokens, identities, reserve)
        self.coming[ticket] = Coming(offer, content, salt)
        self.apply(offer)
        return ticket

    def ask(self, prompt: list[int], ticket: str, **params: object) -> int:
        """The request for a ticket comes."""
        salt = self.coming[ticket].salt if ticket in self.coming else ""
        return self.submit(prompt, kv=scheduler_events.KvTicket(ticket, sends=False), salt=salt, **params)  # type: ignore[arg-type]

    def arrive(self, ticket: str, tokens: int | None = None) -> None:
        """The first `tokens` positions, all unless given, are written and verified."""
        coming, size = self.coming[ticket], self.limits.block_size
        upto = coming.offer.tokens if tokens is None else tokens
        for position in range(coming.arrived, upto):
            self.executor.memory[coming.blocks[position // size]][position % size] = coming.content[position]
        coming.arrived = max(coming.arrived, upto)
        coming.writes = coming.writes and coming.arrived < coming.offer.tokens
        self.apply(scheduler_events.Arrived(self.now, ticket, upto))

    def fail(self, ticket: str) -> None:
        self.coming[ticket].writes = False
        self.apply(scheduler_events.Failed(self.now, ticket, "the test says so"))

    def forget(self, ticket: str) -> None:
        self.coming[ticket].writes = self.coming[ticket].quarantined = False
        self.apply(scheduler_events.Forgotten(self.now, ticket))

    def quarantine(self, ticket: str) -> None:
        self.coming[ticket].quarantined = True
        self.apply(scheduler_events.Quarantined(self.now, ticket, self.coming[ticket].arrived, "the sender is frozen"))

    def scribble(self) -> None:
        """Write rubbish wherever somebody may still write."""
        size = self.limits.block_size
        for coming in self.coming.values():
            if coming.writes:
                for position in range(coming.arrived, coming.offer.tokens):
                    self.executor.memory[coming.blocks[position // size]][position % size] = (
                        -1,
                        self.rng.getrandbits(31),
                    )

    # Moves of a sender's agent

    def send(self, prompt: list[int], ticket: str = "", **params: object) -> str:
        """A request comes whose KV is to be handed over."""
        ticket = ticket or f"out{len(self.prompts)}"
        self.prompts.setdefault(ticket, prompt)
        self.submit(prompt, kv=scheduler_events.KvTicket(ticket, sends=True, peer=b"{}"), max_tokens=0, **params)  # type: ignore[arg-type]
        return ticket

    def admit(self, ticket: str, held: int = 0) -> None:
        going = self.going[ticket]
        going.admitted, going.next_page = True, held
        self.apply(scheduler_events.SendAdmitted(self.now, ticket, held))

    def refuse(self, ticket: str, retry_after_s: float | None = 3.0) -> None:
        self.going[ticket].over = True
        self.apply(scheduler_events.SendRefused(self.now, ticket, "no room there", retry_after_s))

    def give_back(self, ticket: str) -> None:
        self.read()
        self.going[ticket].blocks, self.going[ticket].over = {}, True
        self.apply(scheduler_events.Returned(self.now, ticket))

    def read(self) -> None:
        """Every block that was told of, and not given back, holds what it should."""
        size = self.limits.block_size
        for going in self.going.values():
            for page, block in going.blocks.items():
                wanted = going.content[page * size : (page + 1) * size]
                pairs = zip(self.executor.memory[block], wanted, strict=False)
                assert all(there == it for there, it in pairs if it), "a block on loan was written to"

    # What the scheduler tells

    def told(self, kind: type[scheduler_events.ToAgent]) -> list[scheduler_events.ToAgent]:
        return [message for message in self.messages if isinstance(message, kind)]

    def _obey(self, told: list[Instruction]) -> None:
        super()._obey(told)
        for instruction in told:
            if isinstance(instruction, ToTransfer):
                self.messages.append(instruction.message)
                self._hear(instruction.message)

    def _hear(self, message: scheduler_events.ToAgent) -> None:
        match message:
            case scheduler_events.SendWanted(ticket, _, tokens, identities):
                prompt = self.prompts[ticket]
                content = self.content_of(prompt[:-1], self.limits.block_size)
                assert ticket not in self.going and tokens == len(content)
                assert len(identities) == -(-tokens // self.limits.block_size)
                self.going[ticket] = Going(message, content)
            case scheduler_events.Computed(ticket, first, blocks, last):
                going = self.going[ticket]
                assert going.admitted and not going.last and not going.abandoned and first == going.next_page
                going.blocks |= dict(enumerate(blocks, first))
                going.next_page += len(blocks)
                going.last = last
                assert not last or going.next_page == len(going.wanted.identities)
                self.read()
            case scheduler_events.Abandoned(ticket, reason):
                assert not self.going[ticket].last and not self.going[ticket].over and reason
                self.going[ticket].abandoned = reason
            case scheduler_events.Reserved(ticket, blocks, held):
                self._open(ticket, blocks, held)
            case scheduler_events.ReservationFailed(ticket, free_blocks, reason):
                assert free_blocks == self.scheduler.allocator.pool.num_free and reason
                self.coming[ticket].refused = reason
            case scheduler_events.Fetch(ticket, blocks, held):
                coming = self.coming[ticket]
                assert not coming.fetched and not coming.stopped
                coming.fetched = True
                if not coming.offer.reserve:
                    self._open(ticket, blocks, held)
                assert blocks == coming.blocks
            case scheduler_events.Claimed(ticket, tokens):
                coming = self.coming[ticket]
                assert coming.claimed is None and (not coming.writes or coming.quarantined)
                coming.claimed = tokens
            case scheduler_events.Stopped(ticket):
                coming = self.coming[ticket]
                assert not coming.stopped and coming.claimed is None
                coming.stopped = True

    def _open(self, ticket: str, blocks: list[int], held: int) -> None:
        coming = self.coming[ticket]
        size, pages = self.limits.block_size, coming.offer.page_tokens
        assert not coming.blocks and len(blocks) == -(-coming.offer.tokens // size)
        coming.blocks, coming.arrived, coming.writes = blocks, min(held * pages, coming.offer.tokens), True
        coming.writes = coming.arrived < coming.offer.tokens
        assert coming.arrived % size == 0 or not coming.writes, "a shared block would be written to"
        writable = blocks[coming.arrived // size :]
        for other in self._blocks_in_flight:
            assert not other & set(writable), "a block was given away under a step in flight"
        self._salt_of_block.update(dict.fromkeys(writable, coming.salt))

    # Ends

    def settle(self, most: int = 20_000) -> None:
        """Run until everything is answered; the agent does all it has to, in any order, and nobody asks for anything
        more.
        """
        if not self.executor.serving:
            self.restore()
        for _ in range(most):
            self.scribble()
            sent = self.fill()
            done = self.finish_step()
            if not (sent or done) and not self._agent_moves():
                break
        assert self.scheduler.idle(), "something is left that nobody will end"
        self.read()
        for ticket in [t for t, c in self.coming.items() if c.quarantined]:
            self.forget(ticket)
        self.check_rest()

    def _agent_moves(self) -> bool:
        """One thing that the agent owes the scheduler, drawn from all there are. False: there is none."""
        moves: list[Callable[[], None]] = []
        for t, going in self.going.items():
            if going.over:
                continue
            if not going.admitted and not going.abandoned:
                moves.append(lambda t=t: self.admit(t) if self.rng.random() < 0.7 else self.refuse(t))  # type: ignore[misc]
            elif going.last or going.abandoned:
                moves.append(lambda t=t: self.give_back(t))  # type: ignore[misc]
        for t, coming in self.coming.items():
            if coming.stopped and coming.writes:
                moves.append(lambda t=t: self.fail(t))  # type: ignore[misc]
            elif coming.open:
                moves.append(lambda t=t: self.arrive(t) if self.rng.random() < 0.6 else self.fail(t))  # type: ignore[misc]
            if (
                coming.claimed is None
                and not coming.fetched
                and not coming.stopped
                and not coming.refused
                and not coming.quarantined
            ):
                moves.append(lambda t=t: self.forget_for_good(t))  # type: ignore[misc]
        if moves:
            self.rng.choice(moves)()
        return bool(moves)

    def forget_for_good(self, ticket: str) -> None:
        """No request came, or none will fetch it; nothing more is to be expected of it."""
        self.coming[ticket].refused = "forgotten"
        self.forget(ticket)

    def _check_order(self, step: Step, inside: set[int]) -> None:
        """Those whose blocks are there may go before one that waits for some, and the first may wait for blocks in
        another engine's hands.
        """
