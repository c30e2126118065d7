"""The agent's work for its machine: every action of `machine.py`, and the inputs that answer them. For one thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import assert_never

from homenode.errors import PeerError
from homenode.transfer.agent.buffers import Buffers, CopyThread
from homenode.transfer.agent.fast_path import FastPath, MachineDriver
from homenode.transfer.agent.page_io import PageIO, StagingMemory
from homenode.transfer.net.connection import Connection
from homenode.transfer.net.links import Links
from homenode.transfer.scheduler_events import Computed, ToScheduler
from homenode.transfer.state.machine import (
    Action,
    Close,
    Connect,
    Connected,
    ConnectFailed,
    Copy,
    Epochs,
    FromEngine,
    FromPeer,
    Input,
    Machine,
    PeerLost,
    Receive,
    Send,
    SendPages,
    Sent,
    Tell,
)
from homenode.transfer.wire.lane import Announced, Lanes, ready_of
from homenode.transfer.wire.message import Data, Hello, Message
from homenode.transfer.wire.stream import PagesReader, PayloadReader


class ActionExecutor:
    """Hears of connections (`links.Listener`), feeds the machine, and does what it says. Raises as
    `fast_path.MachineDriver`."""

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
        """`takes_buffers`: this side reads or writes the other's memory; else a Hello that brings some is refused.
        `post` gets what is told."""
        self.feeder = MachineDriver(machine, self._perform, self._drop, clock)
        self.pages = PageIO(buffers, copies, staging, self.feeder.feed, clock)
        self._machine, self._buffers, self._copies = machine, buffers, copies
        self._post, self._clock = post, clock
        self._takes_buffers, self._writable = takes_buffers, writable
        self._processes: dict[bytes, tuple[int, int]] = {}  # incarnation -> pid, connections

    def join(self, links: Links, post: Callable[[ToScheduler], None], lanes: Lanes | None) -> None:
        """The connections, made with this as their listener. `post`: as in `fast_path.FastPath`."""
        self._links = self.pages.links = links
        self.at_once = FastPath(
            self._machine, self.feeder, self.pages, self._buffers, self._copies, links, post, self._clock, lanes
        )
        self.feeder.forget = self.at_once.forget

    # Ahead of the machine

    def answer_ahead(self, given: Input) -> bool:
        """Do what others wait for where the machine's answer is known before it is asked, and let it keep its books
        later (`MachineDriver.catch_up`). False: nothing was done."""
        if self.feeder.busy:
            return False
        self.feeder.catch_up()
        now = self._clock()
        foreseen = self._machine.foresee(given, now)
        if foreseen is None:
            return False
        digests: list[list[bytes]] = []
        for copy in foreseen.copies:
            found = self.pages.copy_at_once(copy, now)
            if found is None:
                return False
            digests.append(found)
        actions = foreseen.then(digests)
        if actions is None:
            return False
        ticket = given.message.ticket if type(given) is FromEngine else ""
        self.feeder.defer(lambda: (given, actions, [digest for each in digests for digest in each]), now, ticket)
        for action in actions:
            self._perform_now(action, now)
        self.at_once.forget(given)
        return True

    def prepare(self) -> None:
        """Prepare what can be done at once, should it be wanted next; for when there is time."""
        if not self.feeder.busy and not self.feeder.behind:
            self.at_once.prepare()

    def promise(self, tickets: Sequence[str]) -> None:
        """See `fast_path.FastPath.promise`."""
        self.at_once.promise(tickets)

    def announce(self, computed: Computed) -> bool:
        """Tell of pages over a lane, ahead of the machine. False: nothing was done."""
        return not self.feeder.busy and self.at_once.announce(computed)

    def rehearse(self, connection: Connection) -> None:
        """See `fast_path.FastPath.rehearse`."""
        if not self.feeder.busy:
            self.at_once.rehearse(connection)

    def on_announced(self, connection: Connection, said: Announced) -> None:
        """See `links.Listener`."""
        if self.feeder.busy or not self.at_once.take(connection, said):
            self.on_message(connection, ready_of(said))

    def _perform_now(self, action: Action, now: float) -> None:
        if type(action) is Tell:
            self._post(action.event)
        elif type(action) is Send and (connection := self._links.find(action.peer)) is not None:
            self._links.send(connection, action.message, now)

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
        self.feeder.feed(Connected(connection.number, hello, connection.address, bases))

    def on_message(self, connection: Connection, message: Message) -> None:
        """See `links.Listener`."""
        given = FromPeer(connection.number, message)
        if isinstance(message, Data) and message.nbytes:
            if not self.pages.header(connection.number, message, lambda: self.feeder.feed(given)):
                connection.discard_payload(message.nbytes)
        elif not self.answer_ahead(given):
            self.feeder.feed(given)

    def on_payload(self, connection: Connection, incoming: PayloadReader | PagesReader) -> None:
        """See `links.Listener`."""
        self.pages.received(incoming)

    def on_sent(self, token: int, ok: bool) -> None:
        """See `links.Listener`."""
        self.feeder.feed(Sent(token, ok))

    def on_not_connected(self, address: str, reason: str) -> None:
        """See `links.Listener`."""
        self.feeder.feed(ConnectFailed(address, reason))

    def on_lost(self, connection: Connection, reason: str, incoming: int | None) -> None:
        """See `links.Listener`."""
        self._buffers.lose(connection.number, self._clock())
        pid, count = self._processes.pop(connection.peer_incarnation, (0, 0))
        if count > 1:
            self._processes[connection.peer_incarnation] = (pid, count - 1)
        if incoming is not None:
            self.pages.drop_receipt(incoming, reason)

    def on_gone(self, number: int, reason: str, dead: bool) -> None:
        """See `links.Listener`."""
        self.feeder.feed(PeerLost(number, reason, dead))

    # What the machine says

    def _perform(self, action: Action) -> None:
        match action:
            case Send(peer, message):
                if (connection := self._links.find(peer)) is not None:
                    self._links.send(connection, message, self._clock())
            case Tell(event):
                self._post(event)
            case Copy():
                self.pages.copy(action)
            case Receive():
                self.pages.receive(action)
            case SendPages():
                self.pages.send(action)
            case Epochs(buffer, blocks, epochs):
                words = self._buffers.local[buffer].words
                if words is not None:
                    words.write(blocks, epochs)
            case Connect(address):
                self._links.connect(address, self._clock())
            case Close(peer, reason):
                self.at_once.forget()
                self._links.close(peer, reason, self._clock())
                self.pages.release(peer, reason)
            case _:
                assert_never(action)

    def _drop(self, given: FromPeer | Connected) -> None:
        """The machine failed over what a peer said."""
        connection = self._links.find(given.peer)
        if connection is not None:
            self._links.drop(connection, "an internal error over what this peer said", self._clock())
