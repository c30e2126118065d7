"""Keys and values of a real model go out to a store, the engine forgets them, and they come back in: same tokens."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from homenode.compute.native import NativeBackend
from homenode.compute.reference import ReferenceBackend
from homenode.engine.assignment import EngineAssignment
from homenode.engine.request import Request
from homenode.engine.runtime.build import build_engine
from homenode.engine.scheduler.events import Emit, Event, RequestArrived, StepDone
from homenode.engine.scheduler.scheduler import Scheduler
from tests.checkpoints import make_folder
from tests.engine.engines import config_for, greedy
from tests.pure.memory_store import MemoryStore
from tests.waiting import PATIENCE_S

SIZE = 32
BACKENDS: dict[str, type[Any]] = {"reference": ReferenceBackend, "native": NativeBackend}


class StoringEngine:
    """A scheduler with a store, driven by hand over a real executor."""

    def __init__(self, path: Path, backend: str) -> None:
        caches: list[Any] = []
        honest = BACKENDS[backend].kv_cache

        def kv_cache(own: Any, *arguments: Any, **settings: Any) -> Any:
            self.backend = own
            caches.append(honest(own, *arguments, **settings))
            return caches[0]

        config = config_for(path, backend=backend, kv_cache_dtype="f32", block_size=SIZE, max_num_batched_tokens=64)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BACKENDS[backend], "kv_cache", kv_cache)
            engine = build_engine(EngineAssignment(config))
        self.executor, self._cache = engine.executor, caches[0]
        pieces = self._arrays if backend == "reference" else self._pieces

        def read(block: int) -> list[bytes]:
            return [bytes(piece) for piece in pieces(block)]

        def write(block: int, content: list[bytes]) -> None:
            for piece, there in zip(pieces(block), content, strict=True):
                piece[:] = there

        self.store = MemoryStore(SIZE, read, write)
        self.scheduler = Scheduler(
            config.scheduler, config.kv, self.executor.limits(), (2,), hash_seed=b"of the test", stores=[self.store]
        )
        self.blank = [bytes(len(piece)) for piece in pieces(0)]
        self.write = write
        self._ids = iter(range(1, 100))
        self._tokens: list[int] = []
        self.cached = 0

    def _arrays(self, block: int) -> list[memoryview]:
        return [memoryview(side[block]).cast("B") for side in (*self._cache.keys, *self._cache.values)]

    def _pieces(self, block: int) -> list[memoryview]:
        memory = self.backend.kv_memory(self._cache)
        return [piece.cast("B") for piece in memory.pieces(block, SIZE // 32)]

    def ask(self, prompt: list[int], max_tokens: int) -> list[int]:
        """The tokens of one request; then the store has done all it had to do."""
        self._tokens, self.cached = [], 0
        self._apply(RequestArrived(0.0, Request(id=next(self._ids), prompt_ids=prompt, params=greedy(max_tokens))))
        while not self.scheduler.idle() or self.store.busy:
            if (step := self.scheduler.next_step()) is not None:
                self.executor.submit(step)
                result = self.executor.result(PATIENCE_S)
                assert result is not None
                self._apply(StepDone(0.0, result))
            for event in self.store.work(0.0):
                self._apply(event)
        return self._tokens

    def _apply(self, event: Event) -> None:
        for instruction in self.scheduler.apply(event):
            if isinstance(instruction, Emit):
                for output in instruction.outputs:
                    self._tokens += output.tokens
                    self.cached = max(self.cached, output.cached_tokens)
        self.scheduler.audit()

    def forget(self) -> None:
        """The cache is emptied, and its blocks are overwritten."""
        pool = self.scheduler.allocator.pool
        pool.forget_all()
        for block in range(pool.num_blocks):
            self.write(block, self.blank)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("toy"))


@pytest.fixture(params=BACKENDS)
def engine(model: Path, request: pytest.FixtureRequest) -> Iterator[StoringEngine]:
    made = StoringEngine(model, request.param)
    yield made
    made.executor.close()


def test_blocks_go_out_and_come_back_with_the_same_tokens(engine: StoringEngine) -> None:
    rng = random.Random(5)
    prompt = [rng.randrange(3, 128) for _ in range(150)]
    first = engine.ask(prompt, 40)
    assert len(first) == 40 and engine.store.pages_out == 189 // SIZE
    engine.forget()
    assert engine.ask(prompt, 40) == first
    assert engine.cached == engine.store.pages_in * SIZE == 128
    engine.forget()
    longer = [*prompt, *first[:20]]
    assert engine.ask(longer, 20) == first[20:]  # the rest of it is computed behind what came back
    assert engine.cached == 160


def test_what_comes_back_is_what_is_computed_with(engine: StoringEngine) -> None:
    """Other keys and values make other tokens: those that came back were not computed anew."""
    prompt = [*range(3, 128), *range(3, 28)]
    first = engine.ask(prompt, 40)
    engine.forget()
    kept = engine.store.kept
    for identity in kept:
        kept[identity] = engine.blank
    assert engine.ask(prompt, 40) != first
