"""The inputs of a machine, one after another, and those it hears of late: what others wait for is done before it has
been asked.

Where the machine foresees its answer (`machine.Foreseen`) that is given first, and the books are kept afterwards
(`catch_up`). The machine then has to say the very same. For one thread.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from homenode.errors import InternalError
from homenode.transfer.figures import TransferFigures
from homenode.transfer.machine import Action, Announcing, Connected, Copied, Copy, Expecting, Foreseen, FromPeer, Input

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


# An input, what was done, of which the machine will say that it is to be done, and the digests of pages that were read
# for it.
Recalled = tuple[Input, Sequence[Action], Sequence[bytes]]


@dataclass(slots=True)
class _Ahead:
    """An input that was answered before the machine has heard of it: what is still to be said of what was done, and of
    the digests of pages."""

    done: deque[Action]
    digests: deque[bytes]
    answers: deque[Copied] = field(default_factory=deque)


class Feeder:
    """Gives a machine its inputs, and has what it says performed. Raises InternalError when the machine contradicts
    itself."""

    def __init__(
        self,
        machine: Machine,
        perform: Callable[[Action], None],
        blame: Callable[[FromPeer | Connected], None],
        clock: Callable[[], float],
    ) -> None:
        """`blame`: the machine failed over what this peer said, which is to be dropped."""
        self.failures = 0
        self.changed = False
        self.off = False  # the machine is asked nothing more
        # The machine is about to be told something; see `at_once.AtOnce.forget`.
        self.forget: Callable[[Input | None], None] = lambda _: None
        self._machine, self._perform, self._blame, self._clock = machine, perform, blame, clock
        self._inputs: deque[Input] = deque()
        self._feeding = False
        self._owed: deque[tuple[Callable[[], Recalled], float, str]] = deque()
        self._ahead: _Ahead | None = None  # the one of them that the machine hears of now

    @property
    def busy(self) -> bool:
        """Nothing can be answered ahead: the machine is being asked already, or nothing more."""
        return self._feeding or self.off

    @property
    def behind(self) -> bool:
        """Whether the machine has not heard yet of something that was answered already."""
        return bool(self._owed)

    @property
    def announced(self) -> frozenset[str]:
        """The tickets whose pages were announced though the machine does not know."""
        return frozenset(announced for _, _, announced in self._owed if announced)

    def feed(self, given: Input) -> None:
        """Give the machine an input, and do what it says; later, if that is what is going on already."""
        if self._owed and not self._feeding:
            self.catch_up()
        self._inputs.append(given)
        if not self._feeding:
            self._feed_all([])

    def owe(self, recall: Callable[[], Recalled], now: float, announced: str = "") -> None:
        """The machine is to hear of what was done without it, after what it is to hear of already. `announced`: the
        ticket whose pages were."""
        self._owed.append((recall, now, announced))

    def catch_up(self) -> None:
        """Tell the machine of what was answered without it. InternalError when it would have answered otherwise."""
        if not self._owed or self._feeding or self.off:
            return
        self._feeding = True
        try:
            while self._owed:
                recall, now, _ = self._owed[0]
                self._settle(recall(), now)
                self._owed.popleft()
        finally:
            self._feeding = False
            self._ahead = None
        if self._inputs:
            self._feed_all([])

    def _settle(self, recalled: Recalled, now: float) -> None:
        given, actions, digests = recalled
        ahead = self._ahead = _Ahead(deque(actions), deque(digests))
        self._handle(given, now)
        while ahead.answers:
            self._handle(ahead.answers.popleft(), now, given)
        if ahead.done or ahead.digests:
            raise InternalError(f"the transfer machine answers {type(given).__name__} otherwise than was foreseen")

    def perform_all(self, actions: list[Action]) -> None:
        """Do what the machine said at another occasion (`tick`, `drain`), which was not `behind`."""
        self.changed = True
        self.forget(None)
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
        self.forget(about or given)
        try:
            actions = self._machine.handle(given, self._clock() if now is None else now)
        except Exception as error:
            self.failures += 1
            if not isinstance(given, FromPeer | Connected):
                raise InternalError(f"the transfer machine failed over {type(given).__name__}: {error}") from error
            _log.exception("the transfer machine failed over what a peer said; the peer is dropped")
            self._blame(given)
            return
        self._perform_each(actions)

    def _perform_each(self, actions: list[Action]) -> None:
        """InternalError if one fails: the machine believes it and those after it done, so nothing of what it knows
        would be true."""
        try:
            for action in actions:
                if self._ahead is None or not self._was_done(action):
                    self._perform(action)
        except InternalError:
            raise
        except Exception as error:
            raise InternalError(f"what the transfer machine wanted could not be done: {error}") from error

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
