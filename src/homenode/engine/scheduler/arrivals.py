"""Takes requests in: refuses what cannot run or does not fit in the queue, and makes sequences of the others."""

from __future__ import annotations

import random
from collections.abc import Iterable

import msgspec

from homenode.engine.kv.allocator import KvAllocator
from homenode.engine.kv.sequence import Sequence
from homenode.engine.request import Request
from homenode.engine.scheduler.admission import longest_sequence, overload, refusal
from homenode.engine.scheduler.kv_coordinator import KvCoordinator
from homenode.engine.scheduler.request_table import RequestTable
from homenode.engine.scheduler.sequence_lists import SequenceLists
from homenode.engine.scheduler_config import SchedulerConfig
from homenode.engine.step import WorkerLimits
from homenode.errors import CapacityError, InternalError, OverloadedError
from homenode.sampling import SamplingParams

_NO_TOKENS: frozenset[int] = frozenset()


class Arrivals:
    """The way that newcomers go: into the queue, aside to wait for another engine, or away. `seeds` draws the sampling
    seed of requests without.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        limits: WorkerLimits,
        eos_token_ids: Iterable[int],
        seeds: random.Random,
        *,
        allocator: KvAllocator,
        lists: SequenceLists,
        coordinator: KvCoordinator,
        requests: RequestTable,
    ) -> None:
        self._config = config
        self._limits = limits
        self._eos = frozenset(eos_token_ids)
        self._seeds = seeds
        self._allocator = allocator
        self._lists = lists
        self._coordinator = coordinator
        self._requests = requests
        self._draining = False
        self._arrivals = 0

    def start_drain(self) -> None:
        """No newcomers from here on."""
        self._draining = True

    def take(self, request: Request, now: float) -> None:
        """Let a request in, or tell its client why not. InternalError when its id is in use."""
        if request.id in self._requests:
            raise InternalError(f"request id {request.id} is in use", id=request.id)
        self._lists.shares.arrived(request.key)
        error = refusal(request, self._config, self._limits)
        if not error and request.kv is not None:
            error = self._coordinator.refusal(request.kv, request.params.max_tokens)
        if error:
            self._requests.refuse(request, error, "capacity" if isinstance(error, CapacityError) else "invalid")
            return
        reason = self._overload(request, self._lists.num_waiting, self._lists.num_waiting_tokens)
        if reason and not self._has_share_left(request):
            self._requests.refuse(request, reason[1], reason[0])
            return
        self._enqueue(self._new_sequence(request, now))

    def _overload(self, request: Request, waiting: int, waiting_tokens: int) -> tuple[str, OverloadedError] | None:
        return overload(
            request,
            self._config,
            draining=self._draining,
            waiting=waiting,
            waiting_tokens=waiting_tokens,
            free_slots=self._config.max_num_seqs - len(self._lists.running),
            retry_after_s=self._requests.retry_after(),
        )

    def _has_share_left(self, request: Request) -> bool:
        """Return whether a full queue is full of other keys' requests: one has room for as many of each key as if all
        keys had as many there.
        """
        waiting, tokens, keys = self._lists.waiting.of_key(request.key)
        return keys > 1 and self._overload(request, waiting * keys, tokens * keys) is None

    def _new_sequence(self, request: Request, now: float) -> Sequence:
        params = request.params
        if params.leaves_seed_open:
            params = msgspec.structs.replace(params, seed=self._seeds.getrandbits(63))
        times = [request.deadline] if request.deadline is not None else []
        if self._config.request_timeout:
            times.append(now + self._config.request_timeout)
        self._arrivals += 1
        return Sequence(
            request=request,
            params=params,
            order=(request.priority, request.arrival, self._arrivals),
            max_len=longest_sequence(self._limits),
            chain=self._allocator.cache.chain(request.kv_scope, rows=request.rows),
            tokens=[*request.prompt_ids, *request.begun],
            deadline=min(times, default=None),
            stops=self._stops(params),
            arrived=now,
        )

    def _stops(self, params: SamplingParams) -> frozenset[int]:
        """Tokens that may end a request: one set for all who add nothing to it."""
        stops = _NO_TOKENS if params.ignore_eos and params.grammar is None else self._eos
        return stops.union(params.stop_token_ids) if params.stop_token_ids else stops

    def _enqueue(self, sequence: Sequence) -> None:
        self._requests.add(sequence)
        kv = sequence.request.kv
        sends = kv is not None and kv.sends and sequence.prefill_target > 0
        if not sequence.gives_last and not sequence.scoring and not sends:  # nothing to draw, score, or hand over
            self._requests.finish(sequence, finish_reason="length")
        elif kv is not None and (sends or not kv.sends):
            self._coordinator.arrive(sequence)
        else:
            self._coordinator.seek(sequence)
            self._lists.waiting.push(sequence)
