"""The demand of what is to be placed: given by flags and variables, checked before a policy sees it."""

from __future__ import annotations

from dataclasses import dataclass

from homenode.host.topology.finding import Finding


@dataclass(frozen=True, slots=True)
class Claim:
    """CPUs that a living process has been given, as the claims file tells. `devices`: logical ids it drives; empty for
    a CPU worker. `computes`: threads of the process itself compute there; else they are for whatever it starts."""

    pid: int
    cpus: tuple[int, ...]
    devices: tuple[int, ...] = ()
    name: str = ""
    computes: bool = False


@dataclass(frozen=True, slots=True)
class Parallelism:
    """The shape of a deployment on this host. Zero devices means: as many as are visible.

    `data_parallel_rank`: this engine's rank among those of this host, for `numa-bind`.
    """

    devices: int = 0
    data_parallel_size: int = 1
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    api_server_count: int | None = None  # None: one for each data-parallel rank
    data_parallel_rank: int = 0
    external_launcher: bool = False  # Ray and torchrun: the local rank alone is the index into the visible devices

    @property
    def ranks_per_engine(self) -> int:
        """Workers of one data-parallel rank."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand that a policy is asked to meet.

    `visible`: logical device ids in the user's order; None when nothing restricts them. `local_rank`: plan this rank
    only; None for all. `before_start`: nothing runs yet, so the visible devices are taken instead of the running ones.
    `reserve_cpus`: physical cores kept for API server, tokenizer, scheduler and KV transfer (`fair`, `cpu-threads`);
    None lets the policy's own rule decide. `*_origin`: the flag or the variable that a value comes from, for messages.
    """

    device_type: str | None = None
    visible: tuple[int, ...] | None = None
    local_rank: int | None = None
    before_start: bool = False
    reserve_cpus: int | None = None
    parallelism: Parallelism = Parallelism()
    numa_bind_nodes: tuple[int, ...] | None = None
    numa_bind_cpus: tuple[str, ...] | None = None
    threads_bind: str = "auto"  # cpu-threads: auto | nobind | LIST|LIST|...
    memory_nodes: tuple[int, ...] | None = None  # cpu-threads: memory nodes to consider
    kv_transfer: bool = False  # cpu-threads: more CPUs are kept
    vllm_version: tuple[int, int] | None = None  # cpu-threads: the release whose rule is kept to; None: the current one
    workers: int | None = None  # CPU workers on a host without accelerators; None: one for each node with allowed CPUs
    share_cores: bool = False  # more CPU workers than cores take turns on these; else they are refused
    claims: tuple[Claim, ...] = ()
    findings: tuple[Finding, ...] = ()  # what of the flags and variables could not be followed
    threads_bind_origin: str = "--cpu-threads-bind"
    memory_nodes_origin: str = "--memory-nodes"
    local_rank_origin: str = "--local-rank"
