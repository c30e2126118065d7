"""One delivery: what comes to a receiver under one ticket."""

from __future__ import annotations

from dataclasses import dataclass, field

from homenode.engine.schedule.residents import KvAllocator
from homenode.engine.schedule.sequence import Sequence
from homenode.transfer.seam import Offered


@dataclass(eq=False, slots=True)
class KvImport:
    """What comes under one ticket."""

    offer: Offered
    blocks: list[int] = field(
        default_factory=list
    )  # a reference to each: for all positions of the request that is to come
    held: int = 0  # positions that were here already
    arrived: int = 0  # positions that are there and verified, the held ones included
    over: bool = False  # no more comes, and nobody writes
    placed: bool = False  # some of its pages are read where another engine has them: the agent is to be told when they are not any more
    stopped: bool = False  # given up; the agent was told to end it
    sequence: Sequence | None = None  # the request it is for has come
    others: list[Sequence] = field(
        default_factory=list
    )  # more requests for the same tokens: they wait to find them in the cache

    @property
    def done(self) -> bool:
        """There is nothing to wait for, and nobody writes."""
        return self.over or self.arrived >= self.offer.tokens

    def is_for(self, sequence: Sequence, residents: KvAllocator) -> bool:
        """Whether a request's own tokens, all but the last, are those that the offer was made for."""
        offer = self.offer
        if len(sequence.tokens) != offer.tokens + 1:
            return False
        same = offer.page_tokens == residents.block_size
        chain = sequence.chain if same else residents.cache.chain(sequence.request.cache_salt, offer.page_tokens)
        return chain.identities(sequence.tokens, offer.tokens) == offer.identities
