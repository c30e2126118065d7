"""Hand-overs for several receivers, asked for in any order: what is said of each is said to the receiver it is for."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from homenode.transfer import scheduler_events as s
from homenode.transfer.state.machine import Copied, Copy, Send
from homenode.transfer.wire import message as m
from tests.pure.transfer.bench import DIGEST, SenderBench, of

PEERS = 4
BATCHES = st.lists(st.tuples(st.integers(0, PEERS - 1), st.integers(1, 3)), min_size=1, max_size=20)


class Batch:
    """Whom each hand-over is for, and what was said of it to whom."""

    def __init__(self, wanted: list[tuple[int, int]], mode: str) -> None:
        self.bench = SenderBench(mode, pages=64)
        self.wanted = {f"t{n}": (peer + 1, pages) for n, (peer, pages) in enumerate(wanted)}
        self.ticket_of: dict[int, str] = {}
        self.said: dict[str, list[type]] = {ticket: [] for ticket in self.wanted}

    def look(self, actions: list[Any]) -> None:
        """Copies are made at once."""
        for action in actions:
            if not isinstance(action, Send):
                continue
            if isinstance(action.message, m.Offer):
                self.ticket_of[action.message.pull_id] = action.message.ticket
            ticket = self.ticket_of[action.message.pull_id]  # type: ignore[union-attr]
            assert action.peer == self.wanted[ticket][0], f"{action.message} to {action.peer}"
            self.said[ticket].append(type(action.message))
        for copy in of(actions, Copy):
            self.look(self.bench.feed(Copied(copy.token, [DIGEST] * copy.pages)))


@given(
    BATCHES,
    st.permutations(range(1, PEERS + 1)),
    st.randoms(use_true_random=False),
    st.sampled_from(["pull-eager", "pull-delay"]),
)
def test_row_49_any_batch_goes_to_whom_it_is_for(
    wanted: list[tuple[int, int]], order: list[int], rng: Any, mode: str
) -> None:
    """Receivers are reached, and answer, in any order."""
    batch = Batch(wanted, mode)
    bench = batch.bench
    for ticket, (peer, pages) in batch.wanted.items():
        batch.look(bench.want(ticket, pages, f"unix:@r{peer}"))
    for peer in order:
        batch.look(bench.connect(peer, bytes([peer]) * 16, f"unix:@r{peer}"))
    assert sorted(batch.ticket_of.values()) == sorted(batch.wanted)
    answers = list(batch.ticket_of.items())
    rng.shuffle(answers)
    first = dict(zip(batch.wanted, range(0, 1000, 3), strict=False))  # blocks of its own
    for pull_id, ticket in answers:
        peer, pages = batch.wanted[ticket]
        batch.look(bench.frame(peer, m.OfferReply(pull_id)))
        batch.look(bench.engine(s.Computed(ticket, 0, list(range(first[ticket], first[ticket] + pages)), True)))
    assert all(said == [m.Offer, m.Ready] for said in batch.said.values())
