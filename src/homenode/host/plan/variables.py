"""The value that a placement setting has: the flag's, else that of our variable, else that of the field's. Pure over a
mapping of variables.

Where a value may come from a variable there is a function for its origin, the name of the flag or the variable: what is
wrong with it is to be mended there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from homenode.cpuset import parse_cpu_list
from homenode.errors import PlacementError, UserError

# Where launchers tell a process its rank on this host, in the order they are believed: who is started by torchrun
# inside an MPI job is numbered by torchrun.
RANK_VARIABLES = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")


THREADS_BIND_FLAG, MEMORY_NODES_FLAG, LOCAL_RANK_FLAG = "--cpu-threads-bind", "--memory-nodes", "--local-rank"
VLLM_VERSION_FLAG = "--vllm-version"
_RELEASE = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})(?:[.+a-z][0-9A-Za-z.+-]*)?")
_THREADS_BIND = ("HOMENODE_CPU_THREADS_BIND", "VLLM_CPU_OMP_THREADS_BIND")
_MEMORY_NODES = ("HOMENODE_MEMORY_NODES", "CPU_VISIBLE_MEMORY_NODES")


_VERSION = ("HOMENODE_VLLM_VERSION",)
_RESERVE = ("HOMENODE_RESERVE_CPUS", "VLLM_CPU_NUM_OF_RESERVED_CPU")
# Variables of the settings that no command line declares, by the flag that messages call the setting by; the first that
# is set counts.
VARIABLES_OF = {
    THREADS_BIND_FLAG: _THREADS_BIND,
    MEMORY_NODES_FLAG: _MEMORY_NODES,
    "--reserve-cpus": _RESERVE,
    VLLM_VERSION_FLAG: _VERSION,
    "--kv-cache-memory": ("VLLM_CPU_KVCACHE_SPACE",),
}


def value_of_variable(flag: str, env: Mapping[str, str]) -> tuple[str, str] | None:
    """The value that a setting has by a variable of the field, as the setting's own flag takes it, and the variable's
    name; None where there is none. UserError for a size of KV memory that is none."""
    name = next((name for name in VARIABLES_OF.get(flag, ()) if env.get(name)), None)
    if name is None:
        return None
    if flag != "--kv-cache-memory":
        return env[name], name
    size = kv_cache_memory(None, env)
    return None if size is None else (str(size), name)


def threads_bind(given: str | None, env: Mapping[str, str]) -> str | None:
    """CPUs of CPU workers: HOMENODE_CPU_THREADS_BIND, VLLM_CPU_OMP_THREADS_BIND. None when nobody says."""
    return _first(given, env, *_THREADS_BIND)


def threads_bind_origin(given: str | None, env: Mapping[str, str]) -> str:
    """Return where the value of `threads_bind` comes from."""
    return _origin(given, env, THREADS_BIND_FLAG, *_THREADS_BIND)


def memory_nodes(given: str | None, env: Mapping[str, str]) -> tuple[int, ...] | None:
    """Memory nodes that CPU workers may take: HOMENODE_MEMORY_NODES, CPU_VISIBLE_MEMORY_NODES. PlacementError
    bad_node_list."""
    text = _first(given, env, *_MEMORY_NODES)
    if text is None:
        return None
    try:
        nodes, why = parse_cpu_list(text), "is empty"
    except UserError:
        nodes, why = (), "cannot be read"
    if nodes:
        return nodes
    origin = memory_nodes_origin(given, env)
    raise PlacementError(
        "bad_node_list",
        f"{origin}: the list of memory nodes {why}",
        seen=repr(text if len(text) <= 80 else text[:77] + "..."),
        wanted="numbers and ranges, such as 0,2-3",
        remedy=f"Mend {origin}.",
        param=MEMORY_NODES_FLAG,
    )


def memory_nodes_origin(given: str | None, env: Mapping[str, str]) -> str:
    """Return where the value of `memory_nodes` comes from."""
    return _origin(given, env, MEMORY_NODES_FLAG, *_MEMORY_NODES)


def reserve_cpus(given: int | None, env: Mapping[str, str], *, cpu_workers: bool) -> int | None:
    """Physical cores to keep: HOMENODE_RESERVE_CPUS, and for CPU workers, whom alone the field means,
    VLLM_CPU_NUM_OF_RESERVED_CPU."""
    if given is not None:
        return given
    names = _RESERVE[: 2 if cpu_workers else 1]
    name = next((name for name in names if env.get(name)), None)
    if name is None:
        return None
    if not env[name].isdecimal() or int(env[name][:9]) > 4096:
        raise UserError(
            f"the variable {name} is {env[name][:40]!r}; it must be a number of CPUs from 0 to 4096", param=name
        )
    return int(env[name])


def vllm_version(given: str | None, env: Mapping[str, str]) -> tuple[int, int] | None:
    """The first two numbers of the release of vLLM whose reserve is kept: HOMENODE_VLLM_VERSION. None when nobody says.
    UserError for what is no release such as 0.32, 0.31.1 or v0.32.0+cpu."""
    text = _first(given, env, *_VERSION)
    if text is None:
        return None
    match = _RELEASE.fullmatch(text.strip()[:64])
    if match is None:
        origin = _origin(given, env, VLLM_VERSION_FLAG, *_VERSION)
        raise UserError(f"{origin} is {text[:40]!r}; it must be a release of vLLM, such as 0.32", param=origin)
    return int(match[1]), int(match[2])


def kv_cache_memory(given: int | None, env: Mapping[str, str]) -> int | None:
    """Bytes of a CPU worker's KV memory: VLLM_CPU_KVCACHE_SPACE, in GiB; 0 there means the default, as in the field.
    None when nobody says."""
    text = env.get("VLLM_CPU_KVCACHE_SPACE", "")
    if given is not None or not text:
        return given
    try:
        size = float(text[:20])
    except ValueError:
        size = -1.0
    if not 0 <= size <= 1 << 20:
        name = "VLLM_CPU_KVCACHE_SPACE"
        raise UserError(
            f"the variable {name} is {text[:40]!r}; it must be a number of GiB, such as 4, or 0 for the default",
            param=name,
        )
    return int(size * 2**30) or None


def rank_of_environment(env: Mapping[str, str]) -> int | None:
    """The local rank that a launcher has put into the variables; None when there is none."""
    name = _rank_variable(env)
    return None if name is None else int(env[name])


def local_rank_origin(given: int | None, env: Mapping[str, str]) -> str:
    """Return where the local rank comes from, of which `rank_of_environment` tells."""
    return LOCAL_RANK_FLAG if given is not None else _rank_variable(env) or LOCAL_RANK_FLAG


def _rank_variable(env: Mapping[str, str]) -> str | None:
    told = ((name, env.get(name, "")) for name in RANK_VARIABLES)
    return next((name for name, text in told if text.isascii() and text.isdecimal() and len(text) < 5), None)


def _first(given: str | None, env: Mapping[str, str], *names: str) -> str | None:
    return given if given is not None else next((env[name] for name in names if env.get(name)), None)


def _origin(given: str | None, env: Mapping[str, str], flag: str, *names: str) -> str:
    return flag if given is not None else next((name for name in names if env.get(name)), flag)
