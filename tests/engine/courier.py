"""Two engines in one process, and a courier between them that copies keys and values from one's KV memory to the
other's, as agents would.

It is called from the loops of both engines. Its KV memory is the NumPy backend's; sizes of blocks may differ.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from homenode.compute.ops import KvGeometry
from homenode.compute.reference import ReferenceBackend
from homenode.compute.reference.kv import ReferenceKvCache
from homenode.engine.assignment import EngineAssignment
from homenode.engine.messages import EngineStats, Output, Outputs, Submit, ToFront
from homenode.engine.request import Request
from homenode.engine.runtime.build import build_engine
from homenode.engine.runtime.loop import EngineCore
from homenode.engine.scheduler.scheduler import Scheduler
from homenode.sampling import SamplingParams
from homenode.transfer import scheduler_events
from homenode.transfer.scheduler_events import TransferStats
from tests.engine.engines import config_for
from tests.waiting import PATIENCE_S


class Member:
    """An engine of the pair: its loop on a thread, its outputs, its KV memory."""

    def __init__(self, path: Path, tell: Callable[[scheduler_events.ToAgent], None], **settings: Any) -> None:
        caches: list[ReferenceKvCache] = []
        honest = ReferenceBackend.kv_cache

        def kv_cache(backend: ReferenceBackend, geometry: KvGeometry, blocks: int) -> ReferenceKvCache:
            caches.append(honest(backend, geometry, blocks))
            return caches[0]

        config = config_for(path, backend="reference", kv_cache_dtype="f32", **settings)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ReferenceBackend, "kv_cache", kv_cache)
            engine = build_engine(EngineAssignment(config))
        self.cache = caches[0]
        self._executor = engine.executor
        scheduler = Scheduler(
            config.scheduler, config.kv, engine.executor.limits(), (2,), hash_seed=b"of both", lookahead=1
        )
        self.tell, self.inbox = tell, SimpleQueue[object]()
        self.figures, self.close = TransferStats, lambda timeout_s: None
        self._sent: SimpleQueue[ToFront] = SimpleQueue()
        self.statistics = EngineStats()
        self._core = EngineCore(
            scheduler, engine.executor, self._sent.put, inbox=self.inbox, agent=self, log_stats=False
        )
        self._thread = threading.Thread(target=self._core.run, daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> None:
        self._core.post(Submit([request]))

    def promise(self, tickets: Sequence[str]) -> None:
        """The courier does not sleep."""

    def outputs(self, until: Callable[[Output], bool]) -> None:
        """Give outputs to `until`, as they come, until it says True."""
        while True:
            message = self._sent.get(timeout=PATIENCE_S)
            if isinstance(message, EngineStats):
                self.statistics = message
            if isinstance(message, Outputs):
                done = [until(output) for output in message.outputs]  # all of them
                if any(done):
                    return

    def rest(self) -> EngineStats:
        """The figures once all blocks are free."""
        while self.statistics.kv_usage or self.statistics.num_running or self.statistics.num_waiting:
            message = self._sent.get(timeout=PATIENCE_S)
            if isinstance(message, EngineStats):
                self.statistics = message
        return self.statistics

    def stop(self) -> None:
        self._core.stop()
        self._thread.join(PATIENCE_S)
        self._executor.close()
        assert not self._thread.is_alive()


@dataclass
class _Way:
    """One ticket's."""

    tokens: int
    lent: list[int] = field(default_factory=list)  # the sender's blocks
    given: list[int] | None = None  # the receiver's blocks
    copied: int = 0  # pages
    last: bool = False
    over: bool = False  # for the receiver
    returned: bool = False


class Courier:
    """Both engines and what goes on between them. `delay`: blocks are taken when the request runs; `loses` a ticket
    after that many pages.
    """

    def __init__(
        self,
        path: Path,
        sender: dict[str, Any],
        receiver: dict[str, Any],
        *,
        delay: bool = False,
        loses: Callable[[str], int | None],
    ) -> None:
        self._delay, self._loses = delay, loses
        self._ways: dict[str, _Way] = {}
        self._lock = threading.RLock()
        self._ids = itertools.count(1)
        self.sender = Member(path, self._from_sender, **sender)
        self.receiver = Member(path, self._from_receiver, **receiver)
        self._page = self.sender.cache.geometry.block_size

    def run(self, prompts: list[list[int]], params: list[SamplingParams], salt: str = "") -> list[list[int]]:
        """What the pair answers. A prompt that was computed is asked for at once, whether its KV has come or not."""
        numbers = {next(self._ids): n for n in range(len(prompts))}
        for number, n in numbers.items():
            kv = scheduler_events.KvTicket(f"t{number}", sends=True)
            self.sender.submit(
                Request(id=number, prompt_ids=prompts[n], params=SamplingParams(max_tokens=0), kv=kv, cache_salt=salt)
            )
        computed: list[int] = []
        answers: list[list[int]] = [[] for _ in prompts]
        left = set(numbers.values())

        def ask(output: Output) -> bool:
            n = numbers[output.id]
            kv = scheduler_events.KvTicket(f"t{output.id}", sends=False)
            assert output.finish_reason == "length" or output.error_kind == "KvRefusedError", output.error
            self.receiver.submit(Request(id=output.id, prompt_ids=prompts[n], params=params[n], kv=kv, cache_salt=salt))
            computed.append(n)
            return len(computed) == len(prompts)

        def take(output: Output) -> bool:
            n = numbers[output.id]
            assert output.finish_reason in (None, "length", "stop"), output.error
            answers[n] += output.tokens
            left.difference_update([n] if output.finish_reason else [])
            return not left

        self.sender.outputs(ask)
        self.receiver.outputs(take)
        return answers

    def close(self) -> None:
        self.sender.stop()
        self.receiver.stop()

    # From the sender

    def _from_sender(self, message: scheduler_events.ToAgent) -> None:
        with self._lock:
            match message:
                case scheduler_events.SendWanted(ticket, _, tokens, identities):
                    self._ways[ticket] = _Way(tokens)
                    self.receiver.inbox.put(
                        scheduler_events.Offered(0.0, ticket, tokens, self._page, identities, not self._delay)
                    )
                    if self._delay:
                        self.sender.inbox.put(scheduler_events.SendAdmitted(0.0, ticket))
                case scheduler_events.Computed(ticket, first, blocks, last):
                    way = self._ways[ticket]
                    assert first == len(way.lent)
                    way.lent += blocks
                    way.last = last
                    self._copy(ticket, way)
                case scheduler_events.Abandoned(ticket):
                    self._end(ticket, self._ways[ticket])

    # From the receiver

    def _from_receiver(self, message: scheduler_events.ToAgent) -> None:
        with self._lock:
            way = self._ways[message.ticket]
            match message:
                case scheduler_events.Reserved(ticket, blocks, held):
                    way.given, way.copied = blocks, held
                    way.lent += [-1] * held
                    self.sender.inbox.put(scheduler_events.SendAdmitted(0.0, ticket, held))
                case scheduler_events.ReservationFailed(ticket, _, reason):
                    self.sender.inbox.put(scheduler_events.SendRefused(0.0, ticket, reason, 0.1))
                case scheduler_events.Fetch(ticket, blocks, held) if way.over:
                    self.receiver.inbox.put(scheduler_events.Failed(0.0, ticket, "too late"))
                case scheduler_events.Fetch(ticket, blocks, held):
                    if way.given is None:
                        way.given, way.copied = blocks, held
                    self._copy(ticket, way)
                case scheduler_events.Claimed(ticket) | scheduler_events.Stopped(ticket):
                    self._end(ticket, way)

    def _copy(self, ticket: str, way: _Way) -> None:
        """Bring what is there on both sides."""
        if way.given is None or way.over:
            return
        source, target, lost = self.sender.cache, self.receiver.cache, self._loses(ticket)
        size = target.geometry.block_size
        for page in range(way.copied, len(way.lent)):
            if lost is not None and page >= lost:
                self._end(ticket, way)
                return
            for at in range(page * self._page, min((page + 1) * self._page, way.tokens)):
                for side, other in zip((*target.keys, *target.values), (*source.keys, *source.values), strict=True):
                    side[way.given[at // size], at % size] = other[way.lent[page], at % self._page]
            way.copied = page + 1
        self.receiver.inbox.put(scheduler_events.Arrived(0.0, ticket, min(way.copied * self._page, way.tokens)))
        if way.last and way.copied == len(way.lent):
            self._end(ticket, way)

    def _end(self, ticket: str, way: _Way) -> None:
        if not way.over:
            way.over = True
            self.receiver.inbox.put(scheduler_events.Failed(0.0, ticket, "it is over"))
        if not way.returned:
            way.returned = True
            self.sender.inbox.put(scheduler_events.Returned(0.0, ticket))
