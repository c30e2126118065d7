"""The native backend: a pool of threads, what it packs, and the programs it replays."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from homenode import _native
from homenode.compute.kv_memory import KvLayout
from homenode.compute.native.barrier_watch import BarrierWatch
from homenode.compute.native.capability import available_levels, choose_level
from homenode.compute.native.kv_layers import NativeKvLayers
from homenode.compute.native.kv_memory import NativeKvMemory, map_memory, native_shape, pool
from homenode.compute.native.kv_pages import KvPages, RegionPages
from homenode.compute.native.meter import NativeMeter
from homenode.compute.native.ranks import NativeRankGroup
from homenode.compute.native.recorder import RecordingOps
from homenode.compute.native.refusals import host_errors, peer_errors
from homenode.compute.native.shared_weights import NativeSharedWeights, shared_words
from homenode.compute.ops import (
    IntArray,
    KvCache,
    KvGeometry,
    MatrixPlacement,
    Ops,
    PackedLocation,
    SampledRows,
    SamplingArrays,
    SharedPlacement,
    StateGeometry,
    StepArrays,
    StepLimits,
    Tensor,
)
from homenode.compute.ranks import RankGroup
from homenode.compute.stored_matrix import StoredMatrix
from homenode.compute.thread_memory import ThreadMemory
from homenode.dtypes import BY_NAME, DType
from homenode.errors import InternalError, UnsupportedError, UserError
from homenode.host.bind.base.syscalls import Syscalls
from homenode.host.bind.memory.arrivals import settle_arrivals
from homenode.host.bind.memory.huge_pages import residences
from homenode.host.bind.memory.residency import PlannedRange, node_residencies
from homenode.numa_policy import MATRIX_POLICIES, NumaPolicy
from homenode.units import format_bytes

_log = logging.getLogger(__name__)
_COUNT_S = 5.0  # between two counts of huge pages
_WATCH_S, _WATCHED_PAGES = 5.0, 2048  # a sample takes a millisecond
_UNEVEN = 1.125  # what a thread may have of the weights, of its even part: rows go in groups
_POLICIES = {policy: getattr(_native.NativeNumaPolicy, policy) for policy in MATRIX_POLICIES}


class NativeBackend:
    """`Backend` in C++, on exactly the CPUs it is given.

    cpus: the CPU of each thread, -1 for a thread that is not pinned. The caller of a run works as the first of them and
    is pinned only while it does. spin_us: how long an idle thread watches for work before it sleeps; a sleeping thread
    needs 10 to 40 us to wake. level: one of `capability.LEVELS`, None for the best there is. groups: for each thread
    the path of groups it belongs to, the largest first, such as (NUMA node, last-level cache); threads of one group
    wait for each other before they wait for another. None: all are one group. memory: the NUMA nodes that weights and
    KV memory come from; None: wherever they are first touched, by the thread that will use them.

    UserError for an impossible level or an empty list of CPUs, HostError when a thread cannot be pinned.
    """

    name = "native"

    def __init__(
        self,
        cpus: Sequence[int],
        spin_us: int = 50,
        level: str | None = None,
        groups: Sequence[Sequence[int]] | None = None,
        memory: ThreadMemory | None = None,
    ) -> None:
        if not cpus:
            raise UserError("the native backend needs at least one thread", param="threads")
        self._level = choose_level(level)
        self.tile_tokens = _native.tile_tokens(self._level)
        with host_errors():
            self._pool = _native.ThreadPool(list(cpus), spin_us, True, groups)
        # The CPUs that each thread is bound to.
        self._places: list[tuple[int, ...]] = [(cpu,) if cpu >= 0 else () for cpu in cpus]
        self._sampler = _native.NativeSampler(self._pool, self._level)
        self._barriers = BarrierWatch(len(cpus))
        self._memory = memory
        self._arena = self._make_arena()
        self._kv_ranges: list[tuple[int, int, int]] = []
        self._state_ranges: list[tuple[int, int, int]] = []  # they count as KV memory where pages are looked at
        self._own_ranges: list[tuple[int, int, int]] = []  # of the last program made
        self._kv_shared = False
        self._kv_regions: list[RegionPages] = []  # of KV memory that is taken when it is used
        self._kv_reserved: KvPages | None = None  # those
        self._kv_changed = False  # since its huge pages were counted
        self._kv_counted = 0.0
        self._kv_huge = 0
        self._kv_away_told = False
        self._pages: dict[str, Any] | None = None  # what the kernel said, as long as nothing was added since
        self._residency: dict[str, list[dict[str, int]] | None] | None = None  # as last seen
        self._residency_seen = 0.0
        self._weight_bytes = 0
        self._shared: list[NativeSharedWeights] = []
        self._shared_weight_bytes = 0
        self._kv_bytes = 0
        self._program_bytes = 0

    def weight_types(self) -> frozenset[str]:
        """See `Backend.weight_types`."""
        return frozenset(
            name for name, dtype in BY_NAME.items() if dtype.gguf_id >= 0 and _native.has_kernel(dtype.gguf_id)
        )

    def weight_from_file(
        self, stored: StoredMatrix, target: str, placement: MatrixPlacement = NumaPolicy.SHARD
    ) -> _native.Weight:
        """See `Backend.weight_from_file`. UnsupportedError for a format the core cannot decode or keep, HostError when
        reading fails.
        """
        format, name = stored.dtype.gguf_id, stored.dtype.name
        if format < 0 or not _native.can_decode(format):
            raise UnsupportedError(f"the native core cannot read {name}; convert it to float32 first", dtype=name)
        with host_errors():
            packed = _native.weight_from_file(
                self._pool,
                _native.WeightFile(
                    fd=stored.fd,
                    offset=stored.offset,
                    format=format,
                    permuted_heads=stored.permuted_heads,
                    stride=stored.row_bytes,
                ),
                self._shape(target, stored.rows, stored.columns, placement),
                self._arena,
            )
        return self._count(packed)

    def weight_from_array(
        self, array: npt.NDArray[Any], target: str, placement: MatrixPlacement = NumaPolicy.SHARD
    ) -> _native.Weight:
        """See `Backend.weight_from_array`."""
        with host_errors():
            values = np.ascontiguousarray(array, np.float32)
            rows, columns = values.shape
            shape = self._shape(target, rows, columns, placement)
            return self._count(_native.weight_from_rows(self._pool, values, shape, self._arena))

    def begin_weights(self, size: int) -> None:
        """See `FittingBackend.begin_weights`."""
        self._arena.expect(int(size / len(self._pool.cpus) * _UNEVEN))

    def end_weights(self) -> None:
        """See `FittingBackend.end_weights`. Only where memory is bound to nodes: elsewhere some MiB do not count, and
        huge pages are kept whole.
        """
        if self._memory is not None and self._memory.bound:
            self._arena.trim()
            self._pages = self._residency = None

    @property
    def packing(self) -> str:
        """See `PackedBackend.packing`."""
        return f"{_native.packing_fingerprint():016x}"

    def packed_bytes(self, target: str, rows: int, columns: int) -> int:
        """See `PackedBackend.packed_bytes`."""
        return _native.packed_bytes(self._target(target), rows, columns)

    def head_checksum(self, fd: int, size: int) -> str:
        """See `PackedBackend.head_checksum`."""
        with host_errors():
            return f"{_native.head_checksum(fd, size):016x}"

    def write_packed(self, weight: _native.Weight, fd: int, offset: int) -> str:
        """See `PackedBackend.write_packed`."""
        with host_errors():
            return f"{weight.write(fd, offset):016x}"

    def weights_from_packed(self, fd: int, locations: Sequence[PackedLocation]) -> list[tuple[_native.Weight, str]]:
        """See `PackedBackend.weights_from_packed`."""
        stored = [(p.offset, self._shape(p.target, p.rows, p.columns, p.placement)) for p in locations]
        with host_errors():
            read = _native.weights_from_packed(self._pool, fd, stored, self._arena)
        return [(self._count(weight), f"{checksum:016x}") for weight, checksum in read]

    def shared_words(self, fd: int, count: int) -> _native.NativeSharedWords:
        """See `SharingBackend.shared_words`."""
        return shared_words(fd, count)

    def shared_weights(self, fd: int, size: int) -> NativeSharedWeights:
        """See `SharingBackend.shared_weights`."""
        memory = NativeSharedWeights(self._pool, fd, size, self._memory)
        self._shared.append(memory)
        return memory

    def attached_weight(
        self, placement: SharedPlacement, target: str, rows: int, columns: int, *, own: bool
    ) -> _native.Weight:
        """See `SharingBackend.attached_weight`. ValueError for a place that is not inside the memory."""
        weight = _native.attach_weight(self._pool, self._shape(target, rows, columns, placement))
        if own:
            return self._count(weight)
        self._shared_weight_bytes += weight.nbytes
        return weight

    def stored_table(self, fd: int, offset: int, dtype: DType, rows: int, columns: int) -> _native.StoredTable:
        """See `TableBackend.stored_table`."""
        if dtype.gguf_id < 0 or not _native.can_decode(dtype.gguf_id):
            raise UnsupportedError(f"the native core cannot read rows of {dtype.name} from a file", dtype=dtype.name)
        with host_errors():
            return _native.stored_table(fd, offset, dtype.gguf_id, rows, columns)

    def vector(self, array: npt.NDArray[Any]) -> _native.Tensor:
        """See `Backend.vector`."""
        return self.constant(np.ascontiguousarray(array).reshape(1, -1))

    def constant(self, array: npt.NDArray[Any]) -> _native.Tensor:
        """A constant input: float32 [rows, columns], standing for the step's tokens in the programs that use it."""
        with host_errors():
            return _native.constant(np.ascontiguousarray(array, np.float32))

    def kv_cache(
        self,
        geometry: KvGeometry,
        blocks: int,
        *,
        shared: bool = False,
        others_write: bool = False,
        shares: Sequence[tuple[int, int, int]] = (),
        touched: bool = True,
        beside: bool = False,
    ) -> KvCache:
        """See `Backend.kv_cache`: a `_native.KvCache`, or `NativeKvLayers` of layers of unlike shapes. With `shared` it
        lies in a memfd (see `kv_memory`), which others may map: for reading, or to write as well.

        `shares`: for each shape, in their order, descriptor, offset and bytes of a memfd of somebody else's that it
        lies in instead, with what that holds. ValueError when one is too small. Without `touched` private memory is
        reserved only, and its pages are taken and given back by `change_kv_pages`, or come when they are first written.
        `beside`: it counts as a part of the last KV memory made, and its pages come and go with that.
        """
        in_file, shapes = shared or bool(shares), geometry.shapes
        places: Sequence[tuple[int, int, int] | None] = shares or [None] * len(shapes)
        interleaved = self._memory is not None and self._memory.interleaved
        sharing = (_native.Sharing.writable if others_write else _native.Sharing.readable) if shared else None
        with host_errors():
            caches = [
                _native.kv_cache(
                    self._pool,
                    native_shape(replace(geometry, layers=(shape,) * len(layers))),
                    blocks,
                    arena=self._arena,
                    interleaved=interleaved,
                    sharing=sharing,
                    share=share,
                    touched=touched,
                )
                for (shape, layers), share in zip(shapes.items(), places, strict=True)
            ]
        reserved = [p for cache in caches for p in self._pages_of(cache)] if not touched and not in_file else []
        ranges = [r for cache in caches for r in cache.ranges]
        if beside:
            reserved, ranges = [*self._kv_regions, *reserved], [*self._kv_ranges, *ranges]
        else:
            self._kv_shared = in_file
        self._kv_regions, self._kv_reserved = reserved, KvPages(reserved) if reserved else None
        self._kv_bytes += sum(cache.nbytes for cache in caches)
        self._kv_ranges, self._pages, self._residency = ranges, None, None
        return caches[0] if len(caches) == 1 else NativeKvLayers(geometry, caches, blocks)

    def state_memory(self, geometry: StateGeometry, slots: int) -> _native.StateMemory:
        """See `Backend.state_memory`. Each thread's part is at its home, and counts as KV memory."""
        with host_errors():
            memory = _native.state_memory(
                self._pool,
                [astuple(layer) for layer in geometry.layers],
                slots,
                arena=self._arena,
                interleaved=self._memory is not None and self._memory.interleaved,
            )
        self._kv_bytes += memory.nbytes
        self._state_ranges, self._pages, self._residency = memory.ranges, None, None
        return memory

    def _pages_of(self, cache: _native.KvCache) -> list[RegionPages]:
        """The pages of a KV cache that is reserved only. Its regions are in the order of `ranges`."""
        regions = _native.KvMemoryHandle.of(cache).layout.regions
        return [
            RegionPages(at, size, region.block_stride, cache.blocks, cpus=self.touched_by(home, cache.refused))
            for (at, size, home), region in zip(cache.ranges, regions, strict=True)
        ]

    def touched_by(self, node_index: int, refused: int) -> tuple[int, ...]:
        """The CPUs of a node, where its memory comes from whoever touches it first and there are other homes.
        `refused`: the errno with which the kernel refused to take it from its node.
        """
        memory = self._memory
        if memory is None or node_index < 0 or len(memory.nodes) < 2 or (memory.bound and not refused):
            return ()
        own = (place for place, of in zip(self._places, memory.node_indices, strict=True) if of == node_index)
        return tuple(dict.fromkeys(cpu for place in own for cpu in place))

    def change_kv_pages(self, changes: Sequence[tuple[int, int, bool]]) -> None:
        """Take or give back the pages of blocks first .. past - 1 of the last KV memory made, where it is reserved
        only: (first, past, whether they are to be there). Between two steps.
        """
        if self._kv_reserved is None:
            return
        came: list[tuple[tuple[int, int], tuple[int, int, int]]] = []
        for first, past, present in changes:
            if present:
                came += zip(self._kv_reserved.take(first, past), self._kv_ranges, strict=True)
            else:
                self._kv_reserved.give_back(first, past)
        self._kv_changed = True
        self._keep_at_home([(at, size, home) for (at, size), (_, _, home) in came if size])

    def _keep_at_home(self, came: Sequence[tuple[int, int, int]]) -> None:
        """Pages that have come later are asked for as those at the start are, where memory is bound to nodes, and
        brought home; what stays away is said once, and is seen in `residency`.
        """
        if self._memory is None or not self._memory.bound or not came:
            return
        away = settle_arrivals(self._memory.planned(came), Syscalls())
        if away and not self._kv_away_told:
            self._kv_away_told = True
            _log.warning("of KV memory that was just taken %s lie on other nodes than planned", format_bytes(away))

    def caches_of(self, cache: KvCache) -> tuple[_native.KvCache, ...]:
        """The native core's own caches that a KV cache is made of: one for each shape of layers."""
        return cache.caches if isinstance(cache, NativeKvLayers) else (cache,)

    def kv_memory(self, cache: _native.KvCache) -> NativeKvMemory:
        """Return what a KV cache of this backend is to others."""
        nodes = self._memory.nodes if self._memory is not None else ()
        homes = [home for _, _, home in cache.ranges]
        return NativeKvMemory(
            _native.KvMemoryHandle.of(cache), self._level, [nodes[h] if nodes and h >= 0 else -1 for h in homes]
        )

    def attach_kv(self, cache: _native.KvCache, memory: NativeKvMemory, first: int | None = None) -> int:
        """Let attention read other memory in place: block b of `memory` is from now on block `first` + b of the cache,
        for steps that do not write there.

        The result is `first`, which may be given; no number is used again. The memory has to be of the cache's geometry
        (ValueError); its bytes are the caller's to verify.
        """
        return cache.attach(memory.handle, first)

    def detach_kv(self, cache: _native.KvCache, first: int) -> None:
        """End that. A step that runs goes on reading the memory and keeps it mapped; later ones are refused. ValueError
        when nothing is there.
        """
        cache.detach(first)

    def kv_pool(
        self, geometry: KvGeometry, blocks: int, *, others_write: bool = False, nodes: Sequence[int] = ()
    ) -> NativeKvMemory:
        """KV memory of its own in a memfd, each block in one piece: see `compute.native.kv_memory.pool`."""
        return pool(geometry, blocks, self._level, others_write=others_write, nodes=nodes)

    def map_kv(self, fd: int, layout: KvLayout, *, writable: bool = False, own: bool = False) -> NativeKvMemory:
        """Another process's KV memory, or `own`: see `compute.native.kv_memory.map_memory`."""
        return map_memory(fd, layout, self._level, writable=writable, own=own)

    def compile(
        self, forward: Callable[[Ops], Tensor], limits: StepLimits, group: RankGroup | None = None, *, fuse: bool = True
    ) -> NativeProgram:
        """See `Backend.compile`. ValueError when the shapes in `forward` do not fit each other, UnsupportedError for a
        group that is not native.

        fuse: let operations be computed on the way into or out of others. Without it every result goes through memory;
        the values are the same.
        """
        if group is not None and not isinstance(group, NativeRankGroup):
            raise UnsupportedError(
                f"programs of the native core sum over ranks of its own kind; seen {type(group).__name__}"
            )
        recorder = RecordingOps(
            self._pool,
            self._level,
            _native.NativeStepLimits(**asdict(limits)),
            fuse=fuse,
            group=None if group is None else group.handle,
            arena=self._arena,
        )
        with host_errors():
            program = recorder.finish(forward(recorder))
        self._program_bytes += program.nbytes
        self._own_ranges, self._residency = program.ranges, None
        return NativeProgram(program, self._barriers)

    def sample(self, logits: _native.NativeOutput, how: SamplingArrays, num_logprobs: int = -1) -> SampledRows:
        """See `Backend.sample`."""
        if how.native is None:
            how.native = NativeSampling()
        arrays = how.native.arrays_of(how)
        return SampledRows(*self._sampler.sample(logits, arrays, num_logprobs))

    def score(self, logits: _native.NativeOutput, rows: IntArray, targets: IntArray, num_logprobs: int) -> SampledRows:
        """See `Backend.score`."""
        return SampledRows(*self._sampler.score(logits, rows, targets, num_logprobs))

    def statistics(self) -> dict[str, Any]:
        """See `Backend.statistics`. Bytes of weights and programs count what was made, freed or not.

        `shared_weight_bytes`: of weights that other processes own and that are read where they lie; `weight_bytes` is
        without them.

        `lost_cpu_shares`: of the time each thread recently computed or watched for the others, the share in which it
        did not have its CPU. `barrier_wait_share`: see `BarrierWatch`. `spin_us`: how long threads watch for each
        other, less than asked for where there are more of them than CPUs. `kv_shared`: whether the last KV memory made
        lies in a memfd. `scratch_bytes`: of the last program, what threads of several homes have for themselves.
        `weight_pages`, `shared_pages` and `kv_pages`: bytes of weights that are this process's alone, of those that
        others map as well, and of the last KV memory made that were in memory, `present`, and of them on huge pages,
        `huge`, when this was first asked for after the last of them was made, or, of KV memory that grows, now; None
        where the kernel does not tell. `residency`: see there; at most some seconds old, of a sample of the pages.
        """
        return {
            "backend": self.name,
            "level": self._level.name,
            "levels": list(available_levels()),
            "threads": len(self._pool.cpus),
            "cpus": list(self._pool.cpus),
            "lost_cpu_shares": [round(share, 3) for share in self._pool.lost_shares],
            "barrier_wait_share": self._barriers.share,
            "spin_us": self._pool.spin_us,
            "weight_bytes": self._weight_bytes,
            "shared_weight_bytes": self._shared_weight_bytes,
            "kv_bytes": self._kv_bytes,
            "kv_shared": self._kv_shared,
            "program_bytes": self._program_bytes,
            "scratch_bytes": sum(size for _, size, _ in self._own_ranges),
            **self._read_pages(),
            "residency": self._watch_residency(),
        }

    def move(self, places: Sequence[Sequence[int]]) -> None:
        """See `MovableBackend.move`. UserError where there are not as many places as threads."""
        with host_errors():
            self._pool.move([list(place) for place in places])
        self._places = [tuple(place) or before for place, before in zip(places, self._places, strict=True)]

    def meter(self, read_bytes: int) -> NativeMeter:
        """Return what measures the limits of the CPUs this backend computes on, at its level: see `NativeMeter`."""
        with host_errors():
            return NativeMeter(self._pool, self._level, read_bytes)

    def _read_pages(self) -> dict[str, Any]:
        """Return where weights and KV memory lie, read back once they are there."""
        if self._pages is None:
            ranges = {
                "weight_pages": self._arena.ranges,
                "shared_pages": self._shared_ranges(),
                "kv_pages": [*self._kv_ranges, *self._state_ranges],
            }
            seen = residences(*map(_extents, ranges.values())) or (None,) * len(ranges)
            self._pages = {name: found and asdict(found) for name, found in zip(ranges, seen, strict=True)}
        if self._kv_reserved is not None:
            self._pages["kv_pages"] = self._read_reserved(self._kv_reserved)
        return self._pages

    def _read_reserved(self, pages: KvPages) -> dict[str, int]:
        """Return of KV memory that grows: what was taken, and of it what the kernel says lies on huge pages, asked anew
        now and then.
        """
        now = time.monotonic()
        if self._kv_changed and now - self._kv_counted >= _COUNT_S:
            self._kv_changed, self._kv_counted = False, now
            seen = residences(_extents(self._kv_ranges))
            self._kv_huge = seen[0].huge if seen else 0
        return {"present": pages.present, "huge": min(self._kv_huge, pages.present)}

    def planned(self) -> dict[str, tuple[PlannedRange, ...]]:
        """See `PlacedBackend.planned`."""
        parts = {
            "weights": [*self._arena.ranges, *self._shared_ranges()],
            "kv": [*self._kv_ranges, *self._state_ranges],
            "scratch": self._own_ranges,
        }
        return {name: () if self._memory is None else self._memory.planned(ranges) for name, ranges in parts.items()}

    def residency(
        self, most_pages: int | None = None, calls: Syscalls | None = None
    ) -> dict[str, list[dict[str, int]] | None]:
        """Ask the kernel where every page of weights, KV memory and threads' own memory lies: for each use a line for
        each planned node.

        See `PlacedBackend.residency`. It costs about 0.4 us a page of 4 KiB; with `most_pages` some pages at even
        distances stand for the others, and other ones each time.
        """
        if self._memory is None:
            return {"weights": None, "kv": None, "scratch": None}
        calls = calls or Syscalls()
        seen = {name: node_residencies(ranges, calls, most_pages) for name, ranges in self.planned().items()}
        return {name: None if lines is None else [asdict(line) for line in lines] for name, lines in seen.items()}

    def _watch_residency(self) -> dict[str, list[dict[str, int]] | None]:
        """A sample of where memory lies, not taken more often than is worth its time."""
        now = time.monotonic()
        if self._residency is None or now - self._residency_seen > _WATCH_S:
            self._residency, self._residency_seen = self.residency(most_pages=_WATCHED_PAGES), now
        return self._residency

    def _shared_ranges(self) -> list[tuple[int, int, int]]:
        """Address, bytes and home of what this process owns of weights that others map as well."""
        return [part for memory in self._shared for part in memory.ranges]

    def _make_arena(self) -> _native.Arena:
        if self._memory is None:
            return _native.Arena(self._pool)
        with host_errors():
            return _native.Arena(
                self._pool, self._memory.node_indices, self._memory.nodes if self._memory.bound else []
            )

    def _target(self, name: str) -> int:
        dtype = BY_NAME.get(name)
        if dtype is None or dtype.gguf_id < 0 or not _native.has_kernel(dtype.gguf_id):
            raise UnsupportedError(
                f"no kernel for weights kept as {name}; there are {', '.join(sorted(self.weight_types()))}", target=name
            )
        return dtype.gguf_id

    def _shape(self, target: str, rows: int, columns: int, placement: MatrixPlacement) -> _native.WeightShape:
        shape = partial(_native.WeightShape, format=self._target(target), rows=rows, columns=columns)
        if isinstance(placement, SharedPlacement):
            return shape(shared=_in_shared(placement), shared_offset=placement.offset)
        return shape(policy=_POLICIES[placement])

    def _count(self, weight: _native.Weight) -> _native.Weight:
        self._weight_bytes += weight.nbytes
        self._pages = self._residency = None
        return weight


class NativeSampling:
    """Sampling arrays as the native core has them. Only arrays that are others than at the last call are
    given to it.
    """

    def __init__(self) -> None:
        self._arrays = _native.NativeSamplingArrays()
        self._given: dict[str, npt.NDArray[Any]] = {}

    def arrays_of(self, how: SamplingArrays) -> _native.NativeSamplingArrays:
        """The arrays of `how`, always the same object. TypeError for one of another type, or with gaps."""
        for name, values in how.named().items():
            if self._given.get(name) is not values:
                setattr(self._arrays, name, values)
                self._given[name] = values
        return self._arrays


@dataclass(frozen=True)
class PhaseTime:
    """Time of all phases of one name ("qkv", "attention", "o", "gate_up", "down", "lm_head", ...) as the first thread
    sees it.

    `runs`: how often such a phase ran. `seconds`: to the beginning of the next phase; `waited`: the part of it spent
    waiting for other threads.
    """

    name: str
    runs: int
    seconds: float
    waited: float


class NativeProgram:
    """`Program` replayed by the pool in one native call; the interpreter is free meanwhile. Calls from several threads
    take turns.
    """

    def __init__(self, program: _native.ProgramHandle, barriers: BarrierWatch) -> None:
        self._program, self._barriers = program, barriers
        self._measured = False  # by who asked for the times of phases

    def run(self, arrays: StepArrays) -> _native.NativeOutput:
        """See `Program.run`. ValueError, naming the value, when the arrays contradict each other, the limits, the
        vocabulary or the KV memory.

        The result is overwritten by the next run; `numpy()` copies it. After a PeerError, every further run fails at
        once.
        """
        if self._measured or not self._barriers.is_due():
            return self._run(arrays)
        self._program.measure_phases(True)
        try:
            output = self._run(arrays)
            phases = self._program.phase_times()
        finally:
            self._program.measure_phases(False)
        self._barriers.take(sum(seconds for _, _, seconds, _ in phases), sum(waited for *_, waited in phases))
        return output

    def _run(self, arrays: StepArrays) -> _native.NativeOutput:
        a = arrays
        seldom: dict[str, Any] = {
            "rope_positions": a.rope_positions,
            "seen_spans": a.seen_spans,
            "adapters": a.adapters,
        }
        with peer_errors():
            return self._program.run(
                a.ids,
                a.positions,
                a.query_start,
                a.context_len,
                a.block_table,
                a.sample_rows,
                a.hidden,
                _state_rows(a),
                a.state_copies,
                a.token_types,
                a.row_places,
                a.input_rows,
                **{name: array for name, array in seldom.items() if array is not None},
            )

    def expert_usage(self) -> npt.NDArray[np.uint64]:
        """See `Program.expert_usage`."""
        return self._program.expert_usage()

    def barriers(self, tokens: int = 1, sequences: int = 1) -> int:
        """Times the threads wait for each other in a step of so many tokens and sequences, one sampled row each; its
        end is not counted.
        """
        return self._program.barriers(tokens, sequences)

    def measure_phases(self, on: bool) -> None:
        """Add up, from the next run on, the time each phase takes (see `phase_times`); False forgets the times."""
        self._measured = on
        self._program.measure_phases(on)

    def phase_times(self) -> list[PhaseTime]:
        """Return where the time of the measured steps went, in order of first appearance in the program; empty unless
        measured.
        """
        return [PhaseTime(*line) for line in self._program.phase_times() if line[1]]


def _state_rows(arrays: StepArrays) -> IntArray | None:
    """The slots of a step's states, and below them which begin; None where it has none."""
    if arrays.state_slot is None:
        return None
    return np.ascontiguousarray((arrays.state_slot, arrays.state_fresh), np.int32)


def _in_shared(placement: SharedPlacement) -> _native.WeightMemory:
    """The native core's memory of a placement."""
    if not isinstance(placement.memory, NativeSharedWeights):
        raise InternalError(f"a weight of the native core in memory of {type(placement.memory).__name__}")
    return placement.memory.handle


def _extents(ranges: Sequence[tuple[int, int, int]]) -> list[tuple[int, int]]:
    return [(address, size) for address, size, _ in ranges]
