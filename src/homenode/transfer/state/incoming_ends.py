"""How one hand-over ends at the receiver: lost, called off, finished, forgotten; and what its sender and the scheduler
are told then."""

from __future__ import annotations

from homenode.transfer.scheduler_events import Failed, Forgotten, Quarantined
from homenode.transfer.state.incoming_pages import Ending, IncomingPages
from homenode.transfer.wire.message import Cancel, Stored


class IncomingEnds(IncomingPages):
    """See the module."""

    def lose(self, reason: str, *, hard: bool, code: str = "lost") -> None:
        """Nothing more will be announced; with `hard` nothing more is read either. The caller settles."""
        if not self.over and not self.complete:
            self.with_.tally.failed[code] += 1
        self.over = self.over or reason
        self.hard = self.hard or hard
        if self.hard:
            self.unanswered()
            self.again.clear()

    def let_go(self) -> None:
        """Nothing of it is wanted, and no blocks were given."""
        self.lose("the request did without it", hard=True, code="unused")
        self.cancelled = True
        self._call_off()

    def finish(self, ending: Ending) -> None:
        """The scheduler, or the time limit, wants it to end."""
        self.ending, self.told_end = ending, False
        if not self.complete:
            self.lose(ending, hard=True, code=ending)
        self.settle()

    def settle(self) -> None:
        """Tell the scheduler of the end when it has come."""
        left = (
            self.again
            or (self.asked < self.told and self.blocks is not None)
            or (self.blocks is None and self.told > 0)
        )
        if (
            not self.ending
            and self.over
            and not self.complete
            and not self.copies
            and not self.reads
            and (self.hard or not left)
        ):
            self.ending = "failed"
        if not self.ending or self.told_end or self.ended or not self.quiet or self.stage != "open":
            return
        if not self.cancelled:
            self.cancelled = True
            self._call_off()
        if self._may_be_written():
            return
        self._tell_end()

    def unanswered(self) -> None:
        """The connection for reads ended: ask again on the next one."""
        self.again.extend(
            page for going in self.reads.values() for page in range(going.first, going.first + going.count)
        )
        for first in list(self.reads):
            self._answered(first)

    def _answered(self, first: int) -> None:
        """What was asked for comes, or is not waited for any more."""
        going = self.reads.pop(first)
        self.process.queued -= self._bytes(going.first, going.count)
        self.with_.deadlines.drop(("read", self.ticket, first))

    def _call_off(self) -> None:
        state, offer = self.with_, self.offer
        if self.complete or self.placed:
            return
        if not state.push:
            state.say_done(self.process, offer.pull_id, False, offer.lease_s)
            return
        why = Stored(offer.pull_id, self.verified, False, self.over) if self.rejected else Cancel(offer.pull_id)
        state.send(self.process.by_came, why)
        if state.shared:
            state.deadlines.set(("drain", self.ticket), state.now + state.limits.drained)

    def cancel_again(self) -> None:
        """The sender's process can be spoken to again."""
        if self.cancelled and self._may_be_written():
            self.with_.send(self.process.by_came, Cancel(self.offer.pull_id))

    def _may_be_written(self) -> bool:
        return self.with_.push and self.with_.shared and not (self.drained or self.complete or self.process.dead)

    def _tell_end(self) -> None:
        state = self.with_
        self.told_end = True
        state.deadlines.drop(("drain", self.ticket))
        if self.ending == "forgotten" or self.quarantined:
            self.ended = True
            state.tally.forgotten += 1
            state.tell(Forgotten(state.now, self.ticket))
            return
        self.ended = self.ending == "stopped"
        state.tell(Failed(state.now, self.ticket, self.over or "the request ended"))

    def not_drained(self) -> None:
        """The sender did not stop in time, so far as is known."""
        state = self.with_
        if self.quarantined or self.told_end or not self._may_be_written():
            return
        self.quarantined = True
        state.tally.quarantined += 1
        if self.ending != "forgotten" or self.wanted:
            self.tell_quarantined()

    def tell_quarantined(self) -> None:
        """A request that is here must not wait for blocks that may still be written."""
        tokens = min(self.verified * self.offer.page_tokens, self.offer.tokens)
        self.with_.tell(Quarantined(self.with_.now, self.ticket, tokens, self.over))
