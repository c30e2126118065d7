"""An engine with its agent: what its machine is fed, and what is done of what it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from homenode.transfer.state.machine import Close, Connect, Copied, Copy, Epochs, Receive, Send, SendPages, Tell
from tests.pure.transfer.copier import Copier


class Process(Copier):
    """An engine with its agent; a crash ends it, and `again` makes the next at the same addresses."""

    def feed(self, what: Any, then: Callable[[list[Any]], None] | None = None) -> None:
        """Handle an input now; when frozen, later."""
        if not self.alive:
            return
        if self.frozen:
            self.thawed.append(lambda: self.feed(what, then))
            return
        if then is None and self.answered_ahead(what):
            self.arm()
            return
        actions = self.machine.handle(what, self.world.now)
        self.act(actions)
        if then is not None:
            then(actions)
        self.arm()

    def answered_ahead(self, what: Any) -> bool:
        """Mostly, where the machine foresees its answer, what others wait for is done first; what the machine says then
        must be just that, and more.
        """
        foreseen = self.machine.foresee(what, self.world.now)
        if foreseen is None or self.world.rng.random() < 0.3:
            return False
        digests = [self.copied_now(copy) for copy in foreseen.copies]
        told = None if None in digests else foreseen.then([found for found in digests if found is not None])
        if told is None:
            return False
        self.world.count["ahead"] += 1
        self.act(told)  # type: ignore[arg-type]
        done, inputs, others = list(told), [what], list[Any]()
        while inputs:
            for action in self.machine.handle(inputs.pop(0), self.world.now):
                if isinstance(action, Copy) and digests:
                    inputs.append(Copied(action.token, digests.pop(0)))
                elif done and action == done[0]:
                    done.pop(0)
                else:
                    others.append(action)
        assert not digests and not done, "the machine did otherwise than it had foreseen"
        self.act(others)
        return True

    def copied_now(self, action: Copy) -> list[bytes] | None:
        """A copy that takes no time."""
        source, target = self.can_reach(action.source), self.can_reach(action.target)
        numbers = range(action.first_page, action.first_page + action.pages)
        if action.epochs is not None and [source.epochs[action.source_table[n]] for n in numbers] != action.epochs:
            return None
        self.owners(source, target, action)
        return [self.copied_page(source, target, action, number) for number in numbers]

    def arm(self) -> None:
        """See to the machine's next deadline."""
        when = self.machine.next_deadline()
        if when is None or (self._armed is not None and self._armed <= when and self._armed > self.world.now):
            return
        self._armed = when
        self.world.after(max(when - self.world.now, 0.0) + self.world.lag(0.001), self.tick)

    def tick(self) -> None:
        if not self.alive:
            return
        if self.frozen:
            self.thawed.append(self.tick)
            return
        self._armed = None
        self.act(self.machine.tick(self.world.now))
        self.arm()

    def act(self, actions: list[Any]) -> None:
        for action in actions:
            match action:
                case Tell(event):
                    self._up = max(self._up, self.world.now + self.world.lag(0.01))
                    self.world.after(
                        self._up - self.world.now, lambda event=event: self.later(lambda: self.told(event))
                    )
                case Send(peer, message):
                    self.in_turn(peer, message)
                case Connect(address):
                    self.connect(address)
                case Close(peer):
                    self.close(peer)
                case Epochs(buffer, blocks, epochs):
                    memory = self.world.memories[buffer]
                    for block, epoch in zip(blocks, epochs, strict=True):
                        assert epoch > memory.epochs[block]
                        memory.epochs[block] = epoch
                case Copy():
                    self.copy(action)
                case SendPages():
                    self.send_pages(action)
                case Receive():
                    pass  # seen to where the header was handled
                case _:
                    raise AssertionError(action)
