"""Other engines as a `BlockSource`: a passage of blocks is a hand-over, and its key the ticket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from homenode.engine.kv.block_source import BlockOffer
from homenode.engine.scheduler.kv_coordinator import KvCoordinator, KvRefusal
from homenode.transfer import scheduler_events


class PeerSource:
    """Turns what is asked of it into `messages` for the transfer agent, and the agent's events into answers."""

    def __init__(self) -> None:
        self.messages: list[scheduler_events.ToAgent] = []

    # In

    def find(self, identities: Sequence[bytes], states: bool = False) -> BlockOffer | None:
        """Find nothing: other engines offer by themselves."""
        return None

    def reserve(self, key: str, blocks: list[int], held: int) -> None:
        """Tell the agent the blocks of an offer."""
        self.messages.append(scheduler_events.Reserved(key, blocks, held))

    def refuse(self, key: str, free_blocks: int, reason: str) -> None:
        """Tell the agent that there are none."""
        self.messages.append(scheduler_events.ReservationFailed(key, free_blocks, reason))

    def fetch(self, key: str, blocks: list[int], held: int, slot: int = -1) -> None:
        """Tell the agent that the request of a ticket is here."""
        self.messages.append(scheduler_events.Fetch(key, blocks, held))

    def stop(self, key: str) -> None:
        """Tell the agent that nobody waits for a ticket any more."""
        self.messages.append(scheduler_events.Stopped(key))

    def release(self, key: str, tokens: int) -> None:
        """Tell the agent that a ticket is done with."""
        self.messages.append(scheduler_events.Claimed(key, tokens))

    def unuse(self, key: str) -> None:
        """Tell the agent that foreign blocks are not read any more."""
        self.messages.append(scheduler_events.Unused(key))

    # Out

    def offer(self, key: str, to: bytes, tokens: int, identities: list[bytes], compute_s: float) -> int | None:
        """Tell the agent what is to be handed over; the other engine answers later."""
        self.messages.append(scheduler_events.SendWanted(key, to, tokens, identities, compute_s))
        return None

    def lacks_states(self, identities: Sequence[bytes], counts: Sequence[int]) -> list[int]:
        """Want none: a state goes in blocks of its own."""
        return []

    def store(
        self, key: str, first: int, blocks: list[int], last: bool, slots: Mapping[int, int] | None = None
    ) -> None:
        """Tell the agent of pages that are complete."""
        self.messages.append(scheduler_events.Computed(key, first, blocks, last))

    def pin(self, session: str, identities: Sequence[bytes]) -> None:
        """Pin nothing: other engines keep what they use."""

    def abandon(self, key: str, reason: str) -> None:
        """Tell the agent that the rest will not be computed."""
        self.messages.append(scheduler_events.Abandoned(key, reason))

    # The agent

    def take(self, event: scheduler_events.ToScheduler, blocks: KvCoordinator) -> KvRefusal | None:
        """Pass on what the agent told. Returns a request that is to be ended, if any."""
        match event:
            case scheduler_events.SendAdmitted(_, ticket, held):
                blocks.admitted(ticket, held)
            case scheduler_events.SendRefused(_, ticket, reason, retry_after_s):
                return blocks.refused(ticket, reason, retry_after_s)
            case scheduler_events.Returned(_, ticket):
                return blocks.stored(ticket)
            case scheduler_events.Offered(_, ticket, tokens, page_tokens, identities, reserve, in_place):
                blocks.offered(self, BlockOffer(ticket, tokens, page_tokens, identities, reserve, in_place))
            case scheduler_events.Arrived(_, ticket, tokens, first, there):
                if there:
                    blocks.placed(self, ticket, first, there)
                blocks.arrived(ticket, tokens)
            case scheduler_events.Failed(_, ticket):
                blocks.failed(ticket)
            case scheduler_events.Quarantined(_, ticket, tokens):
                blocks.quarantined(ticket, tokens)
            case scheduler_events.Forgotten(_, ticket):
                blocks.forgotten(ticket)
        return None
