"""Rules for when each setting of an engine is looked at: one table, by the situation of the other settings, the devices
and the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from homenode.engine.config import EngineConfig
from homenode.engine.devices import CPU, executor_kind, is_accelerator, is_torch
from homenode.engine.disk_config import DiskConfig
from homenode.engine.memory.growth import taken_whole_because
from homenode.host.plan.threads_bind import AUTO, NOBIND
from homenode.host.plan.variables import threads_bind
from homenode.model.hub.locate import BUILTIN_NAME
from homenode.net.settings import is_loopback
from homenode.numa_policy import MATRIX_POLICIES
from homenode.options import options_of

if TYPE_CHECKING:
    from homenode.engine.kv_disk.store_connectors import StoreConnector


@dataclass(frozen=True)
class Situation:
    """The situation that the table is asked about: `devices` of all workers of the engine, `variables` of the
    environment, `of_service`: how many engines there are; None where that comes out later. `keeps_states`: whether
    layers of the model keep a state beside keys and values; `has_experts`: whether it has any; None where the model was
    not opened.
    """

    config: EngineConfig
    devices: Sequence[str]
    variables: Mapping[str, str]
    of_service: int | None = None
    keeps_states: bool | None = None
    has_experts: bool | None = None

    @property
    def has_cpu_workers(self) -> bool:
        """Return whether anything is computed on CPUs, by whatever computes."""
        return not all(map(is_accelerator, self.devices))

    @property
    def has_accelerators(self) -> bool:
        """Return whether anything is computed on a device with memory of its own."""
        return any(map(is_accelerator, self.devices))

    @property
    def has_threads(self) -> bool:
        """Return whether there are compute threads whose number and CPUs are homenode's to choose: NumPy
        has its own.
        """
        return self.has_cpu_workers and not (self.config.compute.backend == "reference" and CPU in self.devices)

    @property
    def sizes_layers(self) -> bool:
        """Return whether the layers of stages are divided by what each device has room for."""
        parallel = self.config.parallel
        return parallel.pipeline_parallel_size > 1 and parallel.layer_split == "auto"

    @property
    def has_torch(self) -> bool:
        """Return whether PyTorch computes anything."""
        return self.config.compute.backend == "torch" or any(map(is_torch, self.devices))

    @property
    def has_native(self) -> bool:
        """Return whether our own kernels compute anything."""
        return self.config.compute.backend == "native" and not all(map(is_torch, self.devices))

    @property
    def has_processes(self) -> bool:
        """Return whether workers live apart from the engine's own process."""
        return executor_kind(self.config.parallel.executor, self.devices) != "inline"

    @property
    def kv_grows(self) -> bool:
        """Return whether KV memory is taken when it is used."""
        return taken_whole_because(self.config, self.devices) is None

    @property
    def kv_may_grow(self) -> bool:
        """The same if --kv-cache-prealloc did not ask for all of it."""
        left = replace(self.config, kv=replace(self.config.kv, kv_cache_prealloc=False))
        return taken_whole_because(left, self.devices) is None

    @property
    def spreads_weights(self) -> bool:
        """Return whether somebody can do what --numa says of weights, where it says that."""
        return self.config.placement.numa not in MATRIX_POLICIES or self.has_native or not self.has_cpu_workers

    @property
    def has_peers(self) -> bool:
        """Return whether it may speak with workers or engines of other hosts."""
        transfer = self.config.transfer
        between_engines = transfer.on and transfer.transfer_channel != "shm"
        return self.config.parallel.executor == "ray" or between_engines

    @property
    def store(self) -> StoreConnector | None:
        """Return the way to the store of KV blocks."""
        if not self.config.disk.outlives:
            return None
        from homenode.engine.kv_disk.store_connectors import connector_of  # who keeps nothing starts sooner without

        return connector_of(self.config)

    @property
    def has_foreign_store(self) -> bool:
        """Return whether KV blocks go to a store of another host, whose connection is its own."""
        return self.store is not None and bool(self.store.host) and not is_loopback(self.store.host)

    def is_read_by_store(self, setting: str) -> bool:
        """Return whether a setting of `DiskConfig` has an effect where blocks are kept; True where they are not."""
        return self.store is None or setting in self.store.looks_at

    @property
    def engines(self) -> int:
        """Engines of the service; 2 stands for several where their number comes out later."""
        if self.of_service is not None:
            return self.of_service
        several = self.config.placement.numa in ("auto", "replicate")
        return max(self.config.parallel.data_parallel_size, 2 if several else 1)

    @property
    def lists(self) -> str:
        """Return what --cpu-threads-bind or its variables say."""
        if self.config.placement.numa_bind:
            return AUTO
        return (threads_bind(self.config.placement.cpu_threads_bind, self.variables) or AUTO).strip()

    @property
    def names_hub_model(self) -> bool:
        """Return whether the model is one of the Hub, which has branches and commits."""
        model = self.config.model.model
        return model not in (None, BUILTIN_NAME) and not Path(str(model)).expanduser().exists()


@dataclass(frozen=True)
class Rule:
    """`part`.`setting` is looked at where `needs` holds; `why` says what stands against it where it does not.
    `severity`: of the finding."""

    part: str
    setting: str
    needs: Callable[[Situation], bool]
    why: str
    severity: str = "warning"


_NO_DRAFTS = "nothing is drafted with --speculative off"
_PEERS = "this engine has no connections to other hosts (--transfer-channel, --executor ray)"
_TORCH = "it is of devices of PyTorch, and none computes here"
_NATIVE = "it is of the native core, which computes nothing here"
_RAY = "it is of --executor ray"
_CPU_WORKERS = "it is of workers on CPUs, and accelerators compute everything"
_ACCELERATORS = "it is of accelerators, and everything is computed on CPUs"
_SPREAD = "our own kernels alone have weights on several nodes, and PyTorch or NumPy computes here"
_THREADS = "NumPy computes here, with threads of its own (--backend reference)"
_OF_STORES = tuple(name for name in options_of(DiskConfig) if name not in ("kv_disk", "kv_park_size"))
RULES = (
    Rule("model", "revision", lambda at: at.names_hub_model, "the model is no repository of the Hub"),
    Rule(
        "model", "pooling", lambda at: at.config.model.runner != "generate", "it is of vectors, and text is generated"
    ),
    Rule("speculation", "num_speculative_tokens", lambda at: at.config.speculation.speculative != "off", _NO_DRAFTS),
    Rule("speculation", "speculative_model", lambda at: at.config.speculation.speculative != "off", _NO_DRAFTS),
    Rule("compute", "threads", lambda at: at.has_cpu_workers, _CPU_WORKERS),
    Rule("compute", "threads", lambda at: at.has_threads or not at.has_cpu_workers, _THREADS),
    Rule("compute", "backend", lambda at: CPU in at.devices, "--stage-devices says what computes on each device"),
    Rule("compute", "isa", lambda at: at.has_native, _NATIVE),
    Rule("compute", "spin_us", lambda at: at.has_native or "torch:cpu" in at.devices, _NATIVE),
    Rule("compute", "attention_backend", lambda at: at.has_torch, _TORCH),
    Rule("compute", "enforce_eager", lambda at: at.has_accelerators, _ACCELERATORS),
    Rule("compute", "gpu_memory_utilization", lambda at: at.has_accelerators, _ACCELERATORS),
    Rule(
        "compute",
        "gpu_memory_utilization",
        lambda at: not at.has_accelerators or at.config.kv.kv_cache_memory is None or at.sizes_layers,
        "the size of KV memory is given (--kv-cache-memory)",
    ),
    Rule(
        "kv",
        "kv_cache_fraction",
        lambda at: at.config.kv.kv_cache_memory is None,
        "the size of KV memory is given (--kv-cache-memory)",
    ),
    Rule("kv", "kv_cache_fraction", lambda at: at.has_cpu_workers, _CPU_WORKERS),
    Rule("kv", "kv_cache_prealloc", lambda at: at.kv_may_grow, "all KV memory is taken at the start in any case"),
    Rule("kv", "kv_cache_release", lambda at: at.kv_grows, "all KV memory is taken at the start and kept"),
    Rule(
        "kv",
        "state_snapshot_interval",
        lambda at: at.keeps_states is not False,
        "no layer of the model keeps a state beside keys and values",
    ),
    Rule(
        "kv",
        "state_snapshot_interval",
        lambda at: at.config.kv.enable_prefix_caching,
        "snapshots are kept for the prefix cache, which is off",
    ),
    *(
        Rule("disk", setting, lambda at: at.config.disk.outlives, "KV is kept on no disk (--kv-disk)")
        for setting in _OF_STORES
    ),
    *(
        Rule(
            "disk",
            setting,
            partial(Situation.is_read_by_store, setting=setting),
            "the store that --kv-disk names has no use for it",
        )
        for setting in _OF_STORES
    ),
    *(
        Rule(
            "disk",
            setting,
            lambda at: at.config.kv.enable_prefix_caching,
            "blocks are found there as those of the prefix cache are, which is off",
        )
        for setting in ("kv_disk", "kv_park_size")
    ),
    Rule(
        "kv_events",
        "kv_events_config",
        lambda at: at.config.kv.enable_prefix_caching or not at.config.kv_events.on,
        "it tells what the prefix cache holds, which is off",
    ),
    *(
        Rule("placement", setting, lambda at: at.has_cpu_workers, _CPU_WORKERS)
        for setting in (
            "cpu_threads_bind",
            "memory_nodes",
            "reserve_cpus",
            "numa",
            "numa_nodes",
            "threads_per_core",
            "numa_mirror_tensors",
            "numa_strict",
            "numa_measured",
        )
    ),
    *(
        Rule("placement", setting, lambda at: at.spreads_weights, _SPREAD)
        for setting in ("numa", "numa_mirror_tensors")
    ),
    Rule(
        "placement",
        "memory_nodes",
        lambda at: not at.config.placement.numa_bind and at.lists != NOBIND,
        "it chooses nodes for --cpu-threads-bind auto, and threads are placed otherwise",
    ),
    Rule(
        "placement",
        "reserve_cpus",
        lambda at: at.lists == AUTO,
        "--cpu-threads-bind says which CPUs compute; leave those to be kept out of its lists",
    ),
    Rule(
        "placement",
        "numa_measured",
        lambda at: at.config.placement.numa == "auto",
        "it is what --numa auto chooses by, and a policy is named",
    ),
    Rule(
        "parallel",
        "layer_split",
        lambda at: at.has_processes,
        "there is one stage, which has all layers (--pipeline-parallel-size)",
    ),
    Rule(
        "parallel",
        "enable_expert_parallel",
        lambda at: at.config.parallel.tensor_parallel_size > 1 or at.engines > 1,
        "one worker has all experts (--tensor-parallel-size, --data-parallel-size)",
    ),
    Rule(
        "parallel",
        "enable_expert_parallel",
        lambda at: at.has_experts is not False,
        "the model has no experts",
    ),
    Rule("parallel", "expert_counts", lambda at: at.has_experts is not False, "the model has no experts"),
    Rule(
        "parallel",
        "expert_placement",
        lambda at: at.config.parallel.enable_expert_parallel,
        "it is of --enable-expert-parallel",
    ),
    Rule("parallel", "ray_address", lambda at: at.config.parallel.executor == "ray", _RAY),
    Rule("parallel", "ray_placement", lambda at: at.config.parallel.executor == "ray", _RAY),
    Rule("net", "peer_keys", lambda at: at.has_peers, _PEERS),
    Rule("net", "peer_plain_text", lambda at: at.has_peers or at.has_foreign_store, _PEERS),
    Rule("parallel", "worker_timeout", lambda at: at.has_processes, "the one worker is in the engine's own process"),
)
