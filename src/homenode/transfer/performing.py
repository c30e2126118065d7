"""What the agent does for its machine: every action of `machine.py`, and the inputs that answer them. For one thread."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, assert_never

import msgspec

from homenode.errors import HomenodeError, InternalError, PeerError
from homenode.transfer.at_once import AtOnce
from homenode.transfer.buffers import Buffers
from homenode.transfer.carriers.carrier import Chunk, LocalBuffer
from homenode.transfer.connection import Connection
from homenode.transfer.copying import CopyJob, CopyThread
from homenode.transfer.figures import TransferFigures
from homenode.transfer.lane import Announced, ready_of
from homenode.transfer.links import Links
from homenode.transfer.machine import (
    Action,
    Announcing,
    Close,
    Connect,
    Connected,
    ConnectFailed,
    Copied,
    Copy,
    Epochs,
    Expecting,
    Foreseen,
    FromEngine,
    FromPeer,
    Input,
    PeerLost,
    Receive,
    Send,
    SendPages,
    Sent,
    Tell,
)
from homenode.transfer.message import Data, Hello, Message
from homenode.transfer.payload import Incoming
from homenode.transfer.seam import Computed, ToScheduler
from homenode.transfer.staging import StagingMemory, block_views, page_nbytes

_log = logging.getLogger(__name__)


class Machine(Protocol):
    """`sender.SenderMachine` or `receiver.ReceiverMachine`."""

    def handle(self, given: Input, now: float, /) -> list[Action]: ...

    def foresee(self, given: Input, now: float, /) -> Foreseen | None: ...

    def announcing(self, most: int, but: Container[str] = ()) -> list[Announcing]: ...

    def expecting(self, most: int, but: Container[str] = ()) -> list[Expecting]: ...

    def tick(self, now: float) -> list[Action]: ...

    def next_deadline(self) -> float | None: ...

    def figures(self) -> TransferFigures: ...

    def drain(self, now: float) -> list[Action]: ...

    def lent(self) -> frozenset[str]: ...

    @property
    def idle(self) -> bool: ...


@dataclass(slots=True)
class _Ahead:
    """An input that was answered before the machine has heard of it. `recall` makes it, and what was done, of which the machine will say that it is to be
    done; `announced`: whose pages were announced."""

    recall: Callable[[], tuple[Input, Sequence[Action]]]
    now: float
    digests: deque[bytes]  # of each page that was read
    announced: str = ""
    done: deque[Action] = field(default_factory=deque)
    answers: deque[Copied] = field(default_factory=deque)


class Performer:
    """Hears of connections (`links.Listener`), feeds the machine, and does what it says. Raises InternalError when the machine contradicts itself."""

    def __init__(
        self,
        machine: Machine,
        buffers: Buffers,
        copies: CopyThread,
        staging: StagingMemory,
        post: Callable[[ToScheduler], None],
        clock: Callable[[], float],
        *,
        takes_buffers: bool,
        writable: bool,
    ) -> None:
        """`takes_buffers`: this side reads or writes the other's memory; else a Hello that brings some is refused. `post` gets what is told."""
        self.links: Links  # made with this as its listener
        self.bytes_copied = self.failures = 0
        self.copy_seconds = 0.0
        self.changed = False
        self.off = False  # the machine is asked nothing more
        self._machine, self._buffers, self._copies, self._staging = machine, buffers, copies, staging
        self._post, self._clock = post, clock
        self._takes_buffers, self._writable = takes_buffers, writable
        self.lanes: AtOnce  # made with this
        self._layout = next(iter(buffers.local.values())).buffer.layout
        self._inputs: deque[Input] = deque()
        self._feeding = False
        self._ahead: _Ahead | None = None
        self._receipts: dict[int, CopyJob] = {}  # what is to be done when a payload is there
        self._fitting = False  # the header just taken has a Receive
        self._header: tuple[int, Data] | None = None
        self._processes: dict[bytes, tuple[int, int]] = {}  # incarnation -> pid, connections

    # Feeding

    def feed(self, given: Input) -> None:
        """Give the machine an input, and do what it says; later, if that is what is going on already."""
        if self._ahead is not None and not self._feeding:
            self.catch_up()
        self._inputs.append(given)
        if not self._feeding:
            self._feed_all([])

    @property
    def behind(self) -> bool:
        """Whether the machine has not heard yet of something that was answered already."""
        return self._ahead is not None

    @property
    def announced(self) -> frozenset[str]:
        """The ticket whose pages were announced though the machine does not know."""
        return frozenset((self._ahead.announced,)) if self._ahead is not None and self._ahead.announced else frozenset()

    def answer_ahead(self, given: Input) -> bool:
        """Where the machine's answer is known before it is asked: do what others wait for, and let it keep its books later (`catch_up`). False:
        nothing was done."""
        if self._feeding or self.off:
            return False
        self.catch_up()
        now = self._clock()
        foreseen = self._machine.foresee(given, now)
        if foreseen is None:
            return False
        digests: list[list[bytes]] = []
        for copy in foreseen.copies:
            found = self._copy_at_once(copy, now)
            if found is None:
                return False
            digests.append(found)
        actions = foreseen.then(digests)
        if actions is None:
            return False
        ticket = given.message.ticket if type(given) is FromEngine else ""
        self._ahead = _Ahead(lambda: (given, actions), now, deque(digest for each in digests for digest in each), ticket)
        for action in actions:
            self._perform_now(action, now)
        return True

    def prepare(self) -> None:
        """What can be done at once, should it be wanted next; for when there is time."""
        if not self.off and not self._feeding and self._ahead is None:
            self.lanes.prepare()

    def announce(self, computed: Computed) -> bool:
        """Tell of pages over a lane, ahead of the machine. False: nothing was done."""
        return not (self._ahead or self._feeding or self.off) and self.lanes.announce(computed)

    def on_announced(self, connection: Connection, said: Announced) -> None:
        """See `links.Listener`."""
        if self._ahead or self._feeding or self.off or not self.lanes.take(connection, said):
            self.on_message(connection, ready_of(said))

    def owe(self, recall: Callable[[], tuple[Input, Sequence[Action]]], now: float, digests: Sequence[bytes], announced: str = "") -> None:
        """The machine is to hear of what was done without it; see `_Ahead`."""
        self._ahead = _Ahead(recall, now, deque(digests), announced)

    def _perform_now(self, action: Action, now: float) -> None:
        if type(action) is Tell:
            self._post(action.event)
        elif type(action) is Send and (connection := self.links.find(action.peer)) is not None:
            self.links.send(connection, action.message, now)

    def _copy_at_once(self, copy: Copy, now: float) -> list[bytes] | None:
        """None if it is too large for that, or came to nothing: it is then asked for again."""
        nbytes = copy.pages * self._layout.block_bytes
        if not self._copies.takes_at_once(nbytes):
            return None
        source = self._buffers.borrow(copy.source, now)
        target = None if copy.digest_only or source is None else self._buffers.borrow(copy.target, now)
        begun, digests = time.perf_counter(), None
        if source is not None and (target is not None or copy.digest_only):
            digests = self._copies.at_once(source, target, chunk_of(copy))
        self.copy_seconds += time.perf_counter() - begun
        for buffer_id, found in ((copy.source, source), (copy.target, target)):
            if found is not None:
                self._buffers.give_back(buffer_id, now)
        if digests is not None and target is not None:
            self.bytes_copied += nbytes
        return digests

    def catch_up(self) -> None:
        """Tell the machine of what was answered without it. InternalError when it would have answered otherwise."""
        ahead = self._ahead
        if ahead is None or self._feeding or self.off:
            return
        self._feeding = True
        try:
            given, actions = ahead.recall()
            ahead.done.extend(actions)
            self._handle(given, ahead.now)
            while ahead.answers:
                self._handle(ahead.answers.popleft(), ahead.now, given)
        finally:
            self._feeding = False
            self._ahead = None
        if ahead.done or ahead.digests:
            raise InternalError(f"the transfer machine answers {type(given).__name__} otherwise than was foreseen")
        if self._inputs:
            self._feed_all([])

    def _was_done(self, action: Action) -> bool:
        """Whether an action was done already, ahead of the machine's word."""
        ahead = self._ahead
        if ahead is None:
            return False
        if type(action) is Copy and len(ahead.digests) >= action.pages:
            ahead.answers.append(Copied(action.token, [ahead.digests.popleft() for _ in range(action.pages)]))
            return True
        if ahead.done and action == ahead.done[0]:
            ahead.done.popleft()
            return True
        return False

    def perform_all(self, actions: list[Action]) -> None:
        """Do what the machine said at another occasion (`tick`, `drain`), which was not `behind`."""
        self.changed = True
        self.lanes.forget()
        self._feed_all(actions)

    def _feed_all(self, actions: list[Action]) -> None:
        """One after another: what an input leads to is done before the next one is told."""
        if self.off:
            return
        self._feeding = True
        try:
            self._perform_each(actions)
            while self._inputs:
                self._handle(self._inputs.popleft())
        finally:
            self._feeding = False

    def _handle(self, given: Input, now: float | None = None, about: Input | None = None) -> None:
        """`about`: another input about the same hand-over, where `given` does not tell which."""
        self.changed = True
        self.lanes.forget(about or given)
        try:
            actions = self._machine.handle(given, self._clock() if now is None else now)
        except Exception as error:
            self.failures += 1
            if not isinstance(given, FromPeer | Connected):
                raise InternalError(f"the transfer machine failed over {type(given).__name__}: {error}") from error
            _log.exception("the transfer machine failed over what a peer said; the peer is dropped")
            connection = self.links.find(given.peer)
            if connection is not None:
                self.links.drop(connection, "an internal error over what this peer said", self._clock())
            return
        self._perform_each(actions)

    def _perform_each(self, actions: list[Action]) -> None:
        """InternalError if one fails: the machine believes it and those after it done, so nothing of what it knows would be true."""
        try:
            for action in actions:
                if self._ahead is None or not self._was_done(action):
                    self._perform(action)
        except InternalError:
            raise
        except Exception as error:
            raise InternalError(f"what the transfer machine wanted could not be done: {error}") from error

    # What connections tell (`links.Listener`)

    def on_greeted(self, connection: Connection, hello: Hello, fds: list[int]) -> None:
        """See `links.Listener`."""
        assert connection.caller is not None
        pid = connection.caller.pid
        known, count = self._processes.get(hello.incarnation, (pid, 0))
        try:
            if known != pid:
                raise PeerError("this incarnation is another process", code="incarnation")
            if hello.buffers and not self._takes_buffers:
                raise PeerError("buffers came with a Hello where none are used", code="buffer")
        except PeerError:
            self._buffers.refuse(fds)
            raise
        owner = (hello.incarnation, pid)
        self._buffers.attach(connection.number, owner, hello.carrier, hello.buffers, fds, writable=self._writable)
        self._processes[hello.incarnation] = (pid, count + 1)
        bases = self._buffers.bases(hello.buffers)
        self.feed(Connected(connection.number, hello, connection.address, bases))

    def on_message(self, connection: Connection, message: Message) -> None:
        """See `links.Listener`."""
        if isinstance(message, Data) and message.nbytes:
            self._header, self._fitting = (connection.number, message), False
            self.feed(FromPeer(connection.number, message))
            self._header = None
            if not self._fitting:
                connection.discard_payload(message.nbytes)
        elif not self.answer_ahead(given := FromPeer(connection.number, message)):
            self.feed(given)

    def on_payload(self, connection: Connection, incoming: Incoming) -> None:
        """See `links.Listener`."""
        if incoming.token is not None:
            self._submit(self._receipts.pop(incoming.token))

    def on_sent(self, token: int, ok: bool) -> None:
        """See `links.Listener`."""
        self.feed(Sent(token, ok))

    def on_not_connected(self, address: str, reason: str) -> None:
        """See `links.Listener`."""
        self.feed(ConnectFailed(address, reason))

    def on_lost(self, connection: Connection, reason: str, incoming: int | None) -> None:
        """See `links.Listener`."""
        self._buffers.lose(connection.number, self._clock())
        pid, count = self._processes.pop(connection.peer_incarnation, (0, 0))
        if count > 1:
            self._processes[connection.peer_incarnation] = (pid, count - 1)
        if incoming is not None:
            self._drop_receipt(incoming, reason)

    def on_gone(self, number: int, reason: str, dead: bool) -> None:
        """See `links.Listener`."""
        self.feed(PeerLost(number, reason, dead))

    # What the machine says

    def _perform(self, action: Action) -> None:
        match action:
            case Send(peer, message):
                if (connection := self.links.find(peer)) is not None:
                    self.links.send(connection, message, self._clock())
            case Tell(event):
                self._post(event)
            case Copy():
                self._copy(action)
            case Receive():
                self._receive(action)
            case SendPages():
                self._send_pages(action)
            case Epochs(buffer, blocks, epochs):
                words = self._buffers.local[buffer].words
                if words is not None:
                    words.write(blocks, epochs)
            case Connect(address):
                self.links.connect(address, self._clock())
            case Close(peer, reason):
                self.lanes.forget()
                self.links.close(peer, reason, self._clock())
                for buffer_id in self._buffers.release(peer):
                    self._copies.stop_using(buffer_id, reason)
            case _:
                assert_never(action)

    def _copy(self, action: Copy) -> None:
        job = self._job(action, self._clock())
        if job is None:
            self.feed(Copied(action.token, None, "the peer's memory is not in reach any more"))
        else:
            self._submit(job)

    def _job(self, action: Copy, now: float) -> CopyJob | None:
        """None when memory is not in reach any more; else it is borrowed."""
        source = self._buffers.borrow(action.source, now)
        target = None if action.digest_only else self._buffers.borrow(action.target, now)
        borrowed = [action.source] if action.digest_only else [action.source, action.target]
        if source is None or (target is None and not action.digest_only):
            for buffer_id, found in zip(borrowed, (source, target), strict=False):
                if found is not None:
                    self._buffers.give_back(buffer_id, now)
            return None
        layout = source.memory.layout if isinstance(source, LocalBuffer) else source.layout
        return CopyJob(action.token, source, target, chunk_of(action), page_nbytes(layout, action.page_tokens), borrowed)

    def _receive(self, action: Receive) -> None:
        if self._header is None or self._header[0] != action.peer or self._fitting:
            raise InternalError("the transfer machine wants to receive where no data is due")
        _, header = self._header
        local = self._buffers.local[action.target]
        connection = self.links.find(action.peer)
        wanted = page_span_nbytes(action, local)
        try:
            if connection is None or header.nbytes != wanted:
                raise PeerError(f"{header.nbytes} bytes were announced where {wanted} belong")
            views, job = self._staging.plan(action, local)
        except HomenodeError as error:
            self.feed(Copied(action.token, None, error.message))
            return
        self._fitting = True
        self._receipts[action.token] = job
        connection.accept_payload(views, action.token)

    def _send_pages(self, action: SendPages) -> None:
        connection = self.links.find(action.peer)
        if connection is None:
            self.feed(Sent(action.token, False))
            return
        memory = self._buffers.local[action.buffer].memory
        nbytes = sum(page_nbytes(memory.layout, tokens) for tokens in action.tokens)
        header = msgspec.structs.replace(action.header, nbytes=nbytes)
        views: Iterator[memoryview] = block_views(memory, action.table, action.tokens)
        self.links.send_payload(connection, header, views, action.token, self._clock())

    # Copies

    def _submit(self, job: CopyJob) -> None:
        done = self._copies.submit(job)
        if done is not None:
            self._finished(*done)

    def collect(self) -> None:
        """What the copy thread has done."""
        for job, copied in self._copies.results():
            self._finished(job, copied)

    def _finished(self, job: CopyJob, copied: Copied) -> None:
        now = self._clock()
        for buffer_id in job.borrowed:
            self._buffers.give_back(buffer_id, now)
        self.copy_seconds += job.seconds
        if copied.digests is not None and job.target is not None:
            self.bytes_copied += job.nbytes
        self.feed(copied)

    def _drop_receipt(self, token: int, reason: str) -> None:
        self._receipts.pop(token, None)
        self.feed(Copied(token, None, reason))


def chunk_of(action: Copy) -> Chunk:
    """The pages, without whose they are."""
    where = (action.first_page, action.pages, action.tokens, action.page_tokens)
    return Chunk(action.source_table, action.target_table, *where, action.epochs)


def page_span_nbytes(action: Receive, local: LocalBuffer) -> int:
    """Bytes of the pages to be received."""
    first = action.first_page * action.page_tokens
    tokens = [min(action.page_tokens, action.tokens - first - page * action.page_tokens) for page in range(action.pages)]
    return sum(page_nbytes(local.memory.layout, count) for count in tokens)
