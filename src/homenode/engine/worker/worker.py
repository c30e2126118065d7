"""The work of a worker, in the order of `channels.messages`: loads its part, takes KV memory, computes its share of
each step. For one thread, but for what says otherwise.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from homenode.compute.kv_memory import KvLayout
from homenode.compute.ops import GrowingBackend, KvCache, Program, StateMemory
from homenode.engine.binding import EngineBinding
from homenode.engine.channels.base import WorkerChannels
from homenode.engine.channels.messages import FileRange, Fits, Join, RunStep, WorkerStepDone
from homenode.engine.experts.usage import EXPERT_USES, Table, of_part
from homenode.engine.worker.drafting import DraftingPrograms, drafting_cache, make_drafter
from homenode.engine.worker.expert_reads import ExpertReads
from homenode.engine.worker.load import InsideEngine, LoadedPart, check_pages, load_part, moved_part
from homenode.engine.worker.model_drafter import DraftingProgram
from homenode.engine.worker.pooler import Pooler
from homenode.engine.worker.runner import Runner
from homenode.engine.worker.shared_kv import SharedKv
from homenode.engine.worker.state_pages import StatePages
from homenode.errors import InternalError

if TYPE_CHECKING:
    from homenode.engine.worker.grammar_masks import GrammarMasks


class PartWorker:
    """The worker that `worker.main` and `executor.inline_workers` run: a part of a model. For one thread, but for
    `statistics`.
    """

    def __init__(self, join: Join, inside: InsideEngine | None = None) -> None:
        """`inside`: of a worker in the engine's own process."""
        self._join, self._inside = join, inside
        self._loaded: LoadedPart | None = None
        self._cache: KvCache | None = None
        self._state: StateMemory = None  # where layers keep a state
        self._state_pages: StatePages | None = None  # where they are handed over
        self._growing: GrowingBackend | None = None  # whose KV memory is taken when it is used
        self._shared: SharedKv | None = None
        self._program: Program | None = None
        self._runner: Runner | None = None
        self._drafting_cache: KvCache | None = None  # of what drafts here, if anything does
        self._drafting: DraftingProgram | None = None
        self._grammars: GrammarMasks | None = None
        self._grammars_lock = threading.Lock()  # while they are made
        self._counts: tuple[Program, Table | None] | None = (
            None  # the program, and how those before it used experts; one value, as others read it
        )

    def load(self, progress: Callable[[int, int], None], experts: int | None = None) -> Fits:
        """Load. `experts`: the descriptor of the memory that comes with `Join.experts`; it stays open. Raises what the
        engine is to be told of.
        """
        loaded = self._loaded = load_part(self._join, progress, experts, self._inside)
        notes = loaded.notes if self._inside else (*loaded.notes, *check_pages(loaded))
        return Fits(
            num_blocks=loaded.limits.num_blocks,
            state_slots=loaded.limits.state_slots,
            tile_tokens=loaded.backend.tile_tokens,
            weight_bytes=loaded.kept.own - (0 if loaded.drafting is None else loaded.drafting.plan.beside_weights),
            shared_weight_bytes=loaded.kept.common,
            notes=notes,
            identity=loaded.model.identity,
        )

    def lay(
        self,
        num_blocks: int,
        memory: tuple[int, FileRange] | None = None,
        grows: bool = False,
        state_slots: int = 0,
        make_cache: Callable[[int], KvCache] | None = None,
    ) -> KvLayout | None:
        """Take KV memory; where that is to lie in a share of a file, how it does. The descriptor stays the caller's.
        `grows`, `state_slots`: see `Lay`. `make_cache`: makes it for so many blocks, in place of the backend.
        """
        limits = msgspec.structs.replace(self.loaded.limits, num_blocks=num_blocks)
        loaded = self._loaded = replace(self.loaded, limits=limits)
        geometry = replace(loaded.geometry, drafting=None)
        self._program = None
        if (state := loaded.geometry.state) is not None:
            self._state = loaded.backend.state_memory(state, state_slots)
        if make_cache is not None:
            self._cache = make_cache(num_blocks)
            self._hand_states_over()
        elif memory is None:
            growing = loaded.backend if grows and isinstance(loaded.backend, GrowingBackend) else None
            self._growing = growing
            self._cache = (
                loaded.backend.kv_cache(geometry, num_blocks)
                if growing is None
                else growing.kv_cache(geometry, num_blocks, touched=False)
            )
        else:
            spec, part = loaded.model.spec, self._join.part
            self._shared = SharedKv(loaded.backend, geometry, num_blocks, memory, spec, part)
            self._cache = self._shared.cache
            self._hand_states_over()
        if loaded.drafting is not None:
            self._drafting_cache = drafting_cache(
                loaded.drafting, loaded.backend, num_blocks, grows=self._growing is not None
            )
        return None if self._shared is None else self._shared.layout

    def _hand_states_over(self) -> None:
        """Have states lie in KV blocks as well, which other engines may read."""
        from homenode.compute.native import NativeBackend  # others keep KV where nobody else can read it

        loaded = self.loaded
        if self._state is not None and isinstance(loaded.backend, NativeBackend):
            memories = [loaded.backend.kv_memory(each) for each in loaded.backend.caches_of(self.cache)]
            self._state_pages = StatePages(memories, self._state, loaded.geometry, loaded.model.spec, self._join.part)

    def change_pages(self, changes: Sequence[tuple[int, int, bool]]) -> None:
        """Of KV memory that grows: see `Pages`."""
        if self._growing is not None:
            self._growing.change_kv_pages(changes)

    def move(self, place: EngineBinding) -> None:
        """Go on in another place. Raises as `moved_part`."""
        self._loaded = moved_part(self._join, self.loaded, place, self._inside)

    def attach(self, fd: int, first: int, layout: KvLayout) -> None:
        """Read other memory in place, as blocks from `first` on. The descriptor stays the caller's. UserError or
        ValueError for memory that is not what is said of it.
        """
        assert self._shared is not None  # `lay` has made it
        self._shared.attach(fd, first, layout)

    def detach(self, first: int) -> None:
        """End that."""
        assert self._shared is not None
        self._shared.detach(first)

    def prepare(self, links: WorkerChannels) -> None:
        """Know of no sequence, and go on with these channels."""
        loaded, part = self.loaded, self._join.part
        pooling, pictures = loaded.model.spec.pooling, loaded.model.spec.pictures
        assert self._cache is not None  # `lay` comes first
        if self._program is None or part.ranks > 1:  # a program is bound to its group
            before = self._uses()
            takes_rows = loaded.limits.row_columns > 0
            if loaded.drafting is None:
                forward = loaded.model.forward(self._cache, self._state, takes_rows=takes_rows)
                self._program = loaded.backend.compile(forward, loaded.step_limits, links.group)
            else:
                programs = DraftingPrograms(loaded.drafting, loaded, self._drafting_cache, links.group)
                self._program = programs.of_model(self._cache, self._state, takes_rows=takes_rows)
                self._drafting = programs.drafting()
            self._counts = (self._program, before)
        self._runner = Runner(
            self._program,
            loaded.backend,
            loaded.limits.block_size,
            eos_token_ids=loaded.model.spec.eos_token_ids,
            part=part,
            channels=links,
            columns=loaded.model.spec.handed_columns,
            state=self._state,
            grammars=self._grammar_masks,
            state_pages=self._state_pages,
            neutral_token=pictures.neutral_token if pictures else None,
            takes_rows=part.first_stage or part.layers.first < (pictures.deep_layers if pictures else 0),
            pooler=None if pooling is None else Pooler(pooling.rows, loaded.model.head),
            make_drafter=None if self._drafting is None else partial(make_drafter, loaded, self._drafting),
            expert_reads=ExpertReads(self._program.expert_usage, part) if any(part.experts) else None,
        )

    def _grammar_masks(self) -> GrammarMasks:
        """Return what binds sequences by grammars, none of which is known yet."""
        grammars = self._lasting_masks()
        grammars.forget()
        return grammars

    def prepare_grammar(self, grammar: str) -> Future[None] | None:
        """See `GrammarMasks.prepare`; None as well where no token is drawn here. From any thread."""
        return self._lasting_masks().prepare(grammar) if self._join.part.last_stage else None

    def _lasting_masks(self) -> GrammarMasks:
        """Return those of the worker's whole life: the vocabulary is read once. From any thread."""
        with self._grammars_lock:
            if self._grammars is None:
                from homenode.engine.worker.grammar_masks import GrammarMasks
                from homenode.engine.worker.vocabulary import read_vocabulary

                loaded, spec = self.loaded, self.loaded.model.spec
                self._grammars = GrammarMasks(
                    lambda: read_vocabulary(self._join, spec),
                    spec.vocab_size,
                    loaded.binding.others,
                    max_length=loaded.limits.max_model_len,
                )
            return self._grammars

    @property
    def runner(self) -> Runner:
        """Return what executes steps; InternalError before `prepare`."""
        if self._runner is None:
            raise InternalError("a step came before the memory for it was laid out")
        return self._runner

    @property
    def cache(self) -> KvCache:
        """The KV memory; InternalError before `lay`."""
        if self._cache is None:
            raise InternalError("the KV memory was not laid out yet")
        return self._cache

    @property
    def state(self) -> StateMemory:
        """The state memory; None where no layer keeps a state."""
        return self._state

    def compute(self, work: RunStep) -> WorkerStepDone:
        """Do a step."""
        result = self.runner.execute(work.step, work.drawn)
        return WorkerStepDone(result, self.runner.waited_s)

    def statistics(self, plain: bool = True) -> dict[str, Any]:
        """Figures of what computes, fit for a message where they are to be `plain`. From any thread."""
        if self._loaded is None:
            return {}
        uses = self._uses()
        return self._loaded.backend.statistics() | (
            {} if uses is None else {EXPERT_USES: uses.tolist() if plain else uses}
        )

    def _uses(self) -> Table | None:
        """Return how often experts were computed here; None where no layer has any."""
        if self._counts is None or not (spec := self.loaded.model.spec).moe:
            return None
        program, before = self._counts
        own = of_part(self._join.part, spec, program.expert_usage())
        return own if before is None else own + before

    @property
    def loaded(self) -> LoadedPart:
        """Return what `load` has made; InternalError before it."""
        if self._loaded is None:
            raise InternalError("the part was not loaded yet")
        return self._loaded
