"""The answers of a machine before it is asked: the one interface between the machines and the agent's fast path.

It changes nothing. The agent does first what others wait for, and the machine hears of it later; it then has to answer
the very same (`fast_path.MachineDriver`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from homenode.transfer.scheduler_events import Arrived, Computed
from homenode.transfer.state.machine import (
    Announcing,
    Copy,
    Expecting,
    Foreseen,
    ReceiveState,
    Send,
    SendState,
    Tell,
)
from homenode.transfer.state.receive_session import ReceiveSession
from homenode.transfer.state.send_session import MOST_AT_ONCE, SendSession
from homenode.transfer.wire.message import Done, Places, Ready, places_of, ready

_MOST_EXPECTED = 256  # pages in one announcement over a lane; more come as a frame, or are taken as if they did

# The receiver's


def foresee_ready(session: ReceiveSession, message: Ready, now: float) -> Foreseen | None:
    """Foresee what `ReceiveSession.ready` will lead to, where these pages can be verified, or copied, at once."""
    ctx, first, window = session.ctx, message.first, session.window
    if session.blocks is None or not _is_undisturbed(session) or not ctx.shared or ctx.push:
        return None
    if first != window.announced or not window.is_level or session.objection(message) is not None:
        return None
    runs = session.runs(first, first + message.count)
    if len(runs) > ctx.limits.in_flight:
        return None
    places = places_of(message)

    def then(digests: list[list[bytes]]) -> list[Send | Tell] | None:
        found = b"".join([digest for each in digests for digest in each])
        return _arrivals(session, message, places[0], runs, now) if found == message.digests else None

    return Foreseen(tuple([_copy(session, message, places, *run) for run in runs]), then)


def foresee_unused(session: ReceiveSession) -> Foreseen | None:
    """Foresee what `ReceiveSession.unused` will lead to."""
    done = _done(session, session.is_complete, math.inf) if session.placed else None
    return None if done is None else Foreseen((), lambda _: [done])


def expect(session: ReceiveSession) -> Expecting | None:
    """The next pages, where they can be taken as soon as they are announced."""
    ctx, process, first, blocks = session.ctx, session.process, session.window.announced, session.blocks
    size, peer = session.offer.page_tokens, session.process.came
    if blocks is None or peer is None or not ctx.shared or ctx.push or size != ctx.layout.block_size:
        return None
    if not _awaits(session, peer, first):
        return None
    runs = session.runs(first, min(first + _MOST_EXPECTED, session.pages))[: ctx.limits.in_flight]
    buffers = [
        name
        for name, layout in process.buffers.items()
        if layout.block_size == size and session.sources.buffer in (b"", name)
    ]
    return Expecting(
        session.ticket,
        peer,
        session.offer.pull_id,
        first,
        session.pages,
        session.offer.tokens,
        size,
        ctx.digest_bytes,
        blocks[first : sum(runs[-1])],
        runs,
        session.sources.seen,
        {name: process.bases.get(name, -1) for name in buffers},
        lambda: _awaits(session, peer, first),
    )


def _is_undisturbed(session: ReceiveSession) -> bool:
    """Tell whether it takes what is announced, and nothing is under way."""
    return session.state is ReceiveState.RECEIVING and not session.copies


def _awaits(session: ReceiveSession, peer: int, first: int) -> bool:
    """Tell whether page `first` is the next, from this peer, and nothing is under way before it."""
    window, process = session.window, session.process
    if not _is_undisturbed(session) or not window.is_level or process.banned:
        return False
    return first == window.announced < session.pages and peer in process.live


def _copy(session: ReceiveSession, message: Ready, places: Places, first: int, count: int) -> Copy:
    assert session.blocks is not None
    size, at, tokens = session.offer.page_tokens, first - message.first, session.offer.tokens
    table, epochs = list(places[0][at : at + count]), list(places[1][at : at + count])
    digest_only, cache = session.reads_in_place(first), session.ctx.own.cache.id
    if size == session.ctx.layout.block_size:  # where pages are blocks only theirs are needed
        blocks, rest = session.blocks[first : first + count], min(tokens - first * size, count * size)
        return Copy(0, message.buffer, table, cache, blocks, 0, count, rest, size, epochs, digest_only)
    table = [-1] * first + table + [-1] * (session.pages - first - count)
    return Copy(0, message.buffer, table, cache, session.blocks, first, count, tokens, size, epochs, digest_only)


def _arrivals(
    session: ReceiveSession, message: Ready, places: Sequence[int], runs: list[tuple[int, int]], now: float
) -> list[Send | Tell]:
    """Return what is told of pages that proved good, as `ReceiveSession` tells of them when it advances."""
    actions: list[Send | Tell] = []
    in_place, past = False, message.first
    for first, count in runs:
        past, at = first + count, first - message.first
        placed: list[int] = []
        if session.reads_in_place(first):
            base = session.process.bases[message.buffer]
            placed, in_place = [base + page for page in places[at : at + count]], True
        tokens = min(past * session.offer.page_tokens, session.offer.tokens)
        actions.append(Tell(Arrived(now, session.ticket, tokens, first if placed else 0, placed)))
    if past == session.pages and not session.placed and not in_place:
        done = _done(session, True, session.offer.lease_s)
        actions += [done] if done is not None else []
    return actions


def _done(session: ReceiveSession, ok: bool, lease: float) -> Send | None:
    process = session.process
    if process.by_made is None or process.dead or (process.banned and lease < math.inf):
        return None
    return Send(process.by_made, Done(session.offer.pull_id, ok))


# The sender's


def announce_next(session: SendSession) -> Announcing | None:
    """The next pages, where they can be announced as soon as they were computed."""
    ctx, first, process = session.ctx, session.announced, session.process
    peer = process.made if process is not None else None
    if peer is None or not ctx.shared or ctx.push or ctx.pool is not None or not _is_next(session, peer, first):
        return None
    most, left = min(ctx.chunk, MOST_AT_ONCE), session.tokens - first * ctx.page_tokens
    return Announcing(
        session.ticket,
        peer,
        session.pull_id,
        first,
        session.pages,
        most,
        left,
        lambda: _is_next(session, peer, first),
    )


def foresee_computed(session: SendSession, computed: Computed) -> Foreseen | None:
    """Foresee what `SendSession.add` will lead to, where these pages can be announced as soon as their digests are
    known."""
    next_, ctx, first, blocks = announce_next(session), session.ctx, computed.first, computed.blocks
    count, size, cache = len(blocks), session.ctx.page_tokens, session.ctx.own.cache.id
    if next_ is None or first != next_.first or not 0 < count <= next_.most or first + count > session.pages:
        return None
    if computed.last != (first + count == session.pages):
        return None
    copy = Copy(0, cache, blocks, cache, [], 0, count, min(next_.tokens, count * size), size, digest_only=True)

    def then(digests: list[list[bytes]]) -> list[Send | Tell] | None:
        places = (blocks, ctx.ledger.epochs(blocks))
        return [Send(next_.peer, ready(session.pull_id, first, digests[0], computed.last, ctx.buffer, places))]

    return Foreseen((copy,), then)


def _is_next(session: SendSession, peer: int, first: int) -> bool:
    """Tell whether page `first` is the next to be computed, and nothing is under way before it."""
    process = session.process
    if session.state is not SendState.SENDING or session.copies or process is None:
        return False
    if process.made != peer or process.banned:
        return False
    return first == session.announced == session.computed < session.pages
