"""Hand-overs that are measured: the whole thing, and what is left to do of one when its last page has been computed."""

from __future__ import annotations

import base64
import statistics
import time
from itertools import pairwise

from homenode.bench.kv_transfer.other_process import PATIENCE_S, OtherProcess
from homenode.bench.kv_transfer.transfer_side import MOSTLY_HELD, Mode, Side
from homenode.errors import PeerError
from homenode.transfer.scheduler_events import Returned

_CONTROLS = 20  # hand-overs of which one row's time is the mean
# between the result of a step and the first word of its pages: as `benchmarks.hand_off` finds it between two engines
APPLYING_S = 160e-6
_HAND_OFFS = 20  # of which one row's time is the median


class WholeTransfer:
    """The whole thing: two agents."""

    def __init__(
        self,
        peer: OtherProcess,
        channel: str,
        mode: Mode,
        page_bytes: int,
        pages: int,
        holds: bool = False,
        keys: str | None = None,
    ) -> None:
        reply = peer.ask(
            do="side",
            channel=channel,
            mode=mode,
            page_bytes=page_bytes,
            pages=pages,
            holds=holds,
            in_place=False,
            keys=keys,
        )
        self.document = base64.b64decode(reply["document"])
        self.side = Side("sender", channel, mode, page_bytes, pages, keys=keys)
        self._peer, self._pages, self._tickets = peer, pages, 0

    def all_pages(self) -> float:
        """Return the seconds from the wish to the return of the pages. PeerError when they did not arrive."""
        return self._arrived(self._hand_over(self._pages))

    def one_page(self) -> float:
        """The same with one."""
        return self._arrived(self._hand_over(1))

    def asked_for(self) -> float:
        """Return the seconds until the receiver has all pages in its blocks, from its wish for them: everything else
        was done before, digests at the sender included, as in an engine that announces pages when they are computed and
        is asked for them later (`pull-delay`, a receiver that `holds`).
        """
        self._tickets += 1
        ticket, agent = f"asked-for-{self._tickets}", self.side.agent
        wanted = agent.statistics().bytes_digested + self._pages * self.side.page_bytes
        self.side.send(ticket, self.document, self._pages)
        self.side.wait_for(lambda: agent.statistics().bytes_digested >= wanted, PATIENCE_S, "digests")
        self._peer.order(do="fetch", ticket=ticket, pages=self._pages)
        self.side.wait_for(self._peer.has_answered, PATIENCE_S, "the other side's answer")
        self._ended(ticket)
        return float(self._peer.answer()["seconds"])

    def control(self, pages: int) -> float:
        """Return what a hand-over of so many pages costs when no page has to be moved: the mean of a row of them, in
        seconds.

        In it: the scheduler's wish, the offer with all identities and its answer, Computed, the digest, epoch and place
        of one page announced, Done and the return of the pages; encoding, both machines, both agents, every system call
        and wake-up. The receiver holds all pages but the last, so that Ready is said; the time both sides spent in the
        copy loop over that page (`copy_seconds`: the sender's digest, the receiver's copy and check) is taken off. Not
        in it: connecting. The next hand-over begins right after the last one, so both agents are awake.
        """
        before = self._copy_seconds()
        total = sum(self._hand_over(pages, MOSTLY_HELD) for _ in range(_CONTROLS))
        return self._arrived((total - (self._copy_seconds() - before)) / _CONTROLS)

    def _copy_seconds(self) -> float:
        return self.side.agent.statistics().copy_seconds + float(self._peer.ask(do="copy seconds")["seconds"])

    def _arrived(self, seconds: float) -> float:
        """Return what was measured, if all of it arrived: the sender has its pages back as well where it did not."""
        failures = self._peer.ask(do="failures")["failures"]
        if failures:
            raise PeerError(f"hand-overs of the benchmark failed: {'; '.join(failures)}")
        return seconds

    def _hand_over(self, pages: int, kind: str = "bench-") -> float:
        self._tickets += 1
        ticket = f"{kind}{self._tickets}"
        begin = time.perf_counter()
        self.side.send(ticket, self.document, pages)
        return self._ended(ticket) - begin

    def _ended(self, ticket: str) -> float:
        ended = self.side.wait(ticket, PATIENCE_S)
        if not isinstance(ended.event, Returned):
            raise PeerError(f"a hand-over of the benchmark failed: {ended.event}")
        return ended.at


class LastPageTransfer:
    """The rest of a hand-over when its last page has been computed: the KV is read where it lies, by a receiver of
    the same host.

    All that can be said before was said before: the offer and its answer, and the pages before the last, as in a
    server, whose chunks are told of while the next is computed. `next` are the times of the rows in `whats`, one for
    each.
    """

    def __init__(self, peer: OtherProcess, page_bytes: int, pages: int, pause_s: float = 0.0) -> None:
        """`pause_s`: before each hand-off; a prompt takes its time."""
        self._count, self._pause_s = min(_HAND_OFFS, pages), pause_s
        reply = peer.ask(
            do="side", channel="shm", mode="pull-eager", page_bytes=page_bytes, pages=pages, holds=False, in_place=True
        )
        self.document = base64.b64decode(reply["document"])
        self.side = Side("sender", "shm", "pull-eager", page_bytes, pages + self._count)
        self._peer, self._pages, self._tickets = peer, pages, 0

    def whats(self, pages: int) -> tuple[str, str, str]:
        """Return the names of the times from the sender's scheduler to the receiver's, which may read then; from the
        receiver's, which has read, to the sender's, whose pages are free then; and the first with what it is without:
        the time that both sides need to read the last page for its digest.
        """
        paused = ", paused" if self._pause_s else ""
        return (
            f"hand-off{paused}, pages: {pages}",
            f"hand-back{paused}, pages: {pages}",
            f"hand-off{paused} + digests, pages: {pages}",
        )

    def next(self, pages: int) -> tuple[float, float, float]:
        """The medians of a row of hand-offs, one right after the other but for the pause."""
        # Half of the sender's buffer, so that none has to wait.
        at_once = max(1, min(self._count, self._pages // (2 * pages)))
        found = [times for _ in range(self._count // at_once) for times in self._several(at_once, pages)]
        bare = statistics.median(there - digests for there, _, digests in found)
        return bare, statistics.median(back for _, back, _ in found), statistics.median(there for there, _, _ in found)

    def _several(self, count: int, pages: int) -> list[tuple[float, float, float]]:
        """Prepare as many together as the sender has room for. For each: until the receiver knew, until
        the sender had its pages back, and the seconds of digests, both sides' together.
        """
        tickets = [f"hand-off-{self._tickets + number}" for number in range(count)]
        self._tickets += count
        for number, ticket in enumerate(tickets):
            self.side.send(ticket, self.document, pages, late=[self._pages + number])
        for ticket in tickets:
            self.side.arrival(ticket, pages - 1, PATIENCE_S)
        self._arrivals(tickets, pages - 1)
        before = float(self._peer.ask(do="copy seconds")["seconds"])
        own = [self._one(ticket) for ticket in tickets]
        answer = self._arrivals(tickets, pages)
        theirs = [after - until for until, after in pairwise([before, *answer["copied"]])]
        return [
            (there - begun, ended - unused, digested + copied)
            for there, unused, copied, (begun, ended, digested) in zip(
                answer["at"], answer["unused"], theirs, own, strict=True
            )
        ]

    def _one(self, ticket: str) -> tuple[float, float, float]:
        """Return when it began, when its pages were back, and the seconds of this side's digest."""
        self.side.compute(ticket, self._pause_s, APPLYING_S)
        before, begin = self.side.agent.statistics().copy_seconds, time.perf_counter()
        self.side.finish(ticket)
        ended = self.side.wait(ticket, PATIENCE_S)
        if not isinstance(ended.event, Returned):
            raise PeerError(f"a hand-over of the benchmark failed: {ended.event}")
        return begin, ended.at, self.side.agent.statistics().copy_seconds - before

    def _arrivals(self, tickets: list[str], pages: int) -> dict[str, list[float]]:
        """Return when so many pages were there, and when they were read no more; the sender's scheduler goes on
        meanwhile.
        """
        self._peer.order(do="arrivals", tickets=[[ticket, pages] for ticket in tickets])
        self.side.wait_for(self._peer.has_answered, PATIENCE_S, "the other side's answer")
        return self._peer.answer()
