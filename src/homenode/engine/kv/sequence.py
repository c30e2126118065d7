"""One request on its way through the scheduler.

A `Sequence` lives as long as its request. While it runs it has a `BlockAllocation`: a handle on the worker and KV
blocks. A preempted sequence loses its allocation and later gets a new one, in which prompt and output so far are
computed again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from homenode.engine.kv.block_source import BlockOffer, BlockSource
from homenode.engine.kv.prefix import HashChain
from homenode.engine.kv.states import SlotAllocation
from homenode.engine.request import Request, TokenLogprob
from homenode.engine.speculation.sequence_drafts import SequenceDrafts
from homenode.sampling import SamplingParams


@dataclass(eq=False, slots=True)
class BlockAllocation:
    """One stay of a sequence on the worker. Positions are counted from the beginning of the prompt."""

    seq: int  # the worker's handle, never reused
    blocks: list[int]
    scheduled: int  # positions in the KV memory or on their way: found in the cache, computed, in flight
    prefill_target: int  # positions to compute before the first token is drawn
    first_unscored: int  # the prompt tokens after this position still lack a log-probability
    started: bool = False  # the worker knows the handle
    ended: bool = False
    sent_blocks: int = 0  # blocks the worker knows
    published: int = 0  # blocks the prefix cache has seen
    computed: int = 0  # positions whose step came back, which were found in the cache, or which were handed over
    last: int = 0  # tokens there will be at most
    last_step: int = -1  # the number of the newest step that contains it
    drafted: int = 0  # of the positions that are scheduled, those in flight that hold a guess of a token
    # While it decodes: up to this position there is nothing to look at, neither a block it lacks nor its end.
    unchecked_until: int = -1
    placed: str = ""  # the key whose pages it reads where their source has them
    state: SlotAllocation | None = None  # of a model whose layers keep a state
    state_pages: list[int] = field(default_factory=list)  # blocks in which its state comes, or goes to another engine

    @property
    def decoding(self) -> bool:
        """All that was known at the start is scheduled: from now on one position a step."""
        return self.scheduled >= self.prefill_target


@dataclass(eq=False, slots=True)
class Sequence:
    """A request, its tokens so far, and what became of it."""

    request: Request
    params: SamplingParams  # with the seed set
    order: tuple[int, float, int]  # priority, arrival, running number: who comes first, kept through preemptions
    max_len: int  # tokens, prompt included, at which it ends
    chain: HashChain
    tokens: list[int]  # prompt and output so far
    deadline: float | None = None
    # Of the prompt tokens known so far; the first has none.
    scores: list[TokenLogprob | None] = field(default_factory=lambda: [None])
    allocation: BlockAllocation | None = None
    last_step: int = -1  # the number of the newest step that contained it under an earlier handle
    next_check_len: int = 0  # with so many tokens there is more to do about the next one than to pass it on
    kv_export: KvExport | None = None  # its KV goes to another engine
    kv_import: KvImport | None = None  # KV that comes from another engine, until it is taken over
    preemptions: int = 0
    losses: int = 0  # how often workers were lost while it was computed
    cached_tokens: int = 0  # prompt tokens found in the prefix cache, or handed over, when it was first admitted
    disk_tokens: int = 0  # of those, the ones that a store brought
    kv_came: tuple[float, float] | None = None  # when KV from a source began to come, and when it was there
    left: int = 0  # tokens that it had left to compute when it began to wait
    arrived: float = 0.0  # when it came, by the engine's clock
    queued_s: float = 0.0  # seconds until it was first admitted
    admitted: bool = False  # was running at least once
    answered: bool = False  # an output was sent
    surprise_limit: float | None = None  # under Mirostat: the bound that its last token has led to
    drafted: tuple[int, ...] = ()  # tokens that the worker expects to follow its last one
    forced_drafts: int = 0  # so many of the first of these follow from its grammar
    expected: int = 0  # tokens that the worker was asked to draft behind its next one
    told_drafts: tuple[int, int] = (0, 0)  # tokens that were drafted and accepted since its last output
    drafts: SequenceDrafts | None = None  # what tokens are drafted from
    finished: bool = False
    id: int = field(init=False)  # the client's number
    last: int = field(init=False)  # tokens, prompt included, that there will be at most
    stops: frozenset[int] = frozenset()  # tokens that may end it

    def __post_init__(self) -> None:
        self.id = self.request.id
        self.last = min(self.num_prompt + self.params.max_tokens, self.max_len)

    @property
    def num_prompt(self) -> int:
        """Tokens in the prompt."""
        return len(self.request.prompt_ids)

    @property
    def num_outputs(self) -> int:
        """Tokens drawn so far."""
        return len(self.tokens) - len(self.request.prompt_ids)

    @property
    def scoring(self) -> bool:
        """Log-probabilities of prompt tokens are wanted and not all there yet; the cache is of no use then."""
        return self.params.prompt_logprobs is not None and len(self.scores) < self.num_prompt

    @property
    def samples(self) -> bool:
        """Return whether it draws tokens at all; with max_tokens 0 the prompt is scored, or computed for another
        engine.
        """
        return self.params.max_tokens > 0

    @property
    def gives_last(self) -> bool:
        """Return whether what its last position leads to is wanted: a token, or its text's vector."""
        return self.samples or self.request.pools

    @property
    def prefill_target(self) -> int:
        """Positions a new allocation has to compute before it draws (or, without drawing, has all scores)."""
        return len(self.tokens) - (0 if self.gives_last else 1)

    @property
    def pending(self) -> int:
        """Tokens being drawn by steps in flight, while it runs; of those that follow drafted ones nobody knows."""
        allocation = self.allocation
        if not allocation or not allocation.decoding or not self.samples:
            return 0
        return allocation.scheduled - allocation.drafted + 1 - len(self.tokens)

    @property
    def exhausted(self) -> bool:
        """The tokens known and being drawn are all there will be, so nothing more needs to be scheduled."""
        return len(self.tokens) + self.pending >= self.last

    def end(self) -> tuple[str | None, int | None]:
        """Return why its newest token is its last, or None if it goes on, and the token that stopped it, if one did.

        A token that would stop the sequence is an ordinary one until `min_tokens` others were drawn; the worker does
        not draw it before, unless a grammar leaves nothing else.
        """
        token = self.tokens[-1]
        if token in self.stops and (self.num_outputs > self.params.min_tokens or self.params.grammar is not None):
            return "stop", token
        return ("length", None) if len(self.tokens) >= self.last else (None, None)

    def extend(self, tokens: list[int]) -> tuple[int, str | None, int | None]:
        """Add accepted tokens up to the one that ends it. How many were added, and what `end` says of the last."""
        for count, token in enumerate(tokens, 1):
            self.tokens.append(token)
            reason, stop_token = self.end()
            if reason is not None:
                return count, reason, stop_token
        return len(tokens), None, None

    def set_next_check(self, block_size: int) -> None:
        """Set `next_check_len` anew: to when it ends or another block is full; at once if its log-probabilities are
        wanted.
        """
        if self.params.logprobs is None:
            self.next_check_len = min(self.last - 1, (len(self.tokens) - 1) // block_size * block_size + block_size)


@dataclass(eq=False, slots=True)
class KvExport:
    """The blocks that go out to a source under one key. A page is a block."""

    source: BlockSource
    key: str
    sequence: Sequence | None  # None: the request has ended
    tokens: int  # positions to be handed over
    blocks: list[int] = field(default_factory=list)  # told of, with a reference each
    reported: int = 0  # pages that the source knows to be there: kept by it already, or in `blocks`
    admitted: bool = False  # the source has room
    closed: bool = False  # nothing more is to be told: the last page was, or the source has ended it
    kept: bool = False  # it goes to a store, whatever became of its request
    slots: list[int] = field(default_factory=list)  # of snapshots of states that the store reads, too


@dataclass(eq=False, slots=True)
class KvImport:
    """The blocks that come in from a source under one key."""

    source: BlockSource
    offer: BlockOffer
    # A reference to each: for all positions of the request that is to come.
    blocks: list[int] = field(default_factory=list)
    cached: int = 0  # positions that were here already
    arrived: int = 0  # positions that are there and verified, the held ones included
    ended: bool = False  # no more comes, and nobody writes
    # some of its pages are read where the source has them: it is to be told when they are not any more
    placed: bool = False
    begun_at: float = 0.0  # when it was offered or asked for, by the engine's clock...
    done_at: float = 0.0  # ...and when the last of it was there
    stopped: bool = False  # given up; the source was told to bring no more
    sequence: Sequence | None = None  # the request it is for has come
    slot: int = -1  # in which a state comes with the blocks; -1: none does
    state_there: bool = True
    # The key of another engine's offer, which waits until this has come from a store, to be found in the cache.
    ahead_of: str = ""
    # More requests for the same tokens: they wait to find them in the cache.
    others: list[Sequence] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """There is nothing to wait for, and nobody writes."""
        return self.ended or (self.arrived >= self.offer.tokens and self.state_there)


def allocations_of(running: list[Sequence]) -> list[BlockAllocation]:
    """Return the allocations of sequences that run, and so have one."""
    return [sequence.allocation for sequence in running]  # type: ignore[misc]
