"""The rank that a process of an engine is, told from its title or its environment. Pure.

Engines that start their workers themselves write who they are into their titles, once the worker knows: vLLM
`VLLM::Worker_DP0_PP1_TP3_EP3`, `VLLM::EngineCore_DP0`, `VLLM::APIServer_0`, `VLLM::DPCoordinator`; SGLang
`sglang::scheduler_DP0_TP3_EP3`, `sglang::detokenizer`. Only dimensions of a size above one are written. Workers of
homenode's own engine name the accelerator that they drive as the last word of their command line, as torch counts it,
which is the number of their rank. Launchers such as torchrun and mpirun pass the local rank in the environment instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from homenode.host.plan.demand import Parallelism
from homenode.host.plan.variables import rank_of_environment

ROLES = ("worker", "engine_core", "api_server", "coordinator", "detokenizer")

_TITLE = re.compile(
    r"[\w.-]+::(?:(\w*?Worker|scheduler)|(EngineCore)|(APIServer)|(DPCoordinator)|(detokenizer))"
    r"((?:_[A-Za-z]*\d{1,5})*)",
    re.ASCII,
)
_OWN_WORKER = "homenode.engine.worker.main"
_DRIVEN = re.compile(r"(?:npu|cuda|xpu)(?::(\d{1,4}))?", re.ASCII)
_ROLE_OF_GROUP = dict(enumerate(ROLES, 1))
_RANK = re.compile(r"_([A-Z]+)(\d+)", re.ASCII)

# How vLLM and SGLang spell the sizes.
_TENSOR = ("--tensor-parallel-size", "-tp", "--tp-size", "--tp")
_PIPELINE = ("--pipeline-parallel-size", "-pp", "--pp-size", "--pp")
_DATA = ("--data-parallel-size", "-dp", "--dp-size", "--dp")
_DATA_ON_THIS_HOST = ("--data-parallel-size-local", "-dpl")


@dataclass(frozen=True, slots=True)
class RankHint:
    """The facts that a process tells of itself. `role`: one of ROLES. `local_rank`: where the environment gives it;
    else the ranks named in the title.
    """

    role: str
    local_rank: int | None = None
    data_parallel: int | None = None
    pipeline_parallel: int | None = None
    tensor_parallel: int | None = None
    other: tuple[str, ...] = ()  # named dimensions that ranks cannot be counted with here, such as PCP


def worker_rank_of(title: str, environ: Mapping[str, str], arguments: Sequence[str] = ()) -> RankHint | None:
    """Return what the title (the first word of /proc/PID/cmdline), its `arguments` (the others), else the environment
    tells; None when none tells anything.
    """
    if (rank := _rank_of_own_worker(arguments)) is not None:
        return RankHint("worker", rank)
    found = _TITLE.fullmatch(title.strip())
    if found is None:
        return _hint_of_environment(environ)
    role = next(_ROLE_OF_GROUP[group] for group in _ROLE_OF_GROUP if found[group])
    ranks = {name: int(number) for name, number in _RANK.findall(found[len(ROLES) + 1])}
    # Expert and decode-context ranks count the same processes once more.
    other = tuple(sorted(ranks.keys() - {"DP", "PP", "TP", "EP", "DCP"}))
    return RankHint(role, None, ranks.get("DP"), ranks.get("PP"), ranks.get("TP"), other)


def local_rank_of(hint: RankHint, shape: Parallelism) -> int | None:
    """The local rank, as engines count: data-parallel rank, then stage, then tensor rank. None when it cannot be told,
    or is no worker's.

    With a `shape` of all ones, which is what is known when nobody said, a title that names one dimension only is still
    understood.
    """
    if hint.local_rank is not None:
        return hint.local_rank
    if (
        hint.other
        or hint.role not in ("worker", "engine_core")
        or (hint.role == "engine_core" and shape.ranks_per_engine != 1)
    ):
        return None  # an engine core is its own worker when it has only one
    sizes = (shape.data_parallel_size, shape.pipeline_parallel_size, shape.tensor_parallel_size)
    ranks = (hint.data_parallel, hint.pipeline_parallel, hint.tensor_parallel)
    if sizes == (1, 1, 1):
        named = [rank for rank in ranks if rank is not None]
        return None if len(named) > 1 else (named or [0])[0]
    if any(rank is None if size > 1 else rank for rank, size in zip(ranks[1:], sizes[1:], strict=True)):
        return None
    # Where attention alone is data parallel, titles name a data-parallel rank that counts no processes: its size is 1
    # then.
    engine = (hint.data_parallel or 0) if shape.data_parallel_size > 1 else 0
    stage, tensor = hint.pipeline_parallel or 0, hint.tensor_parallel or 0
    if engine >= sizes[0] or stage >= sizes[1] or tensor >= sizes[2]:
        return None
    return engine * shape.ranks_per_engine + stage * shape.tensor_parallel_size + tensor


def parallelism_of(argv: Sequence[str]) -> Parallelism:
    """The sizes that the flags of a vLLM or SGLang command line give; 1 where there is none or it is no number."""
    given: dict[str, str] = {}
    for word, after in zip(argv, [*argv[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        if name.startswith("-"):
            given[name.replace("_", "-")] = value if equals else after
    data = 1 if "--enable-dp-attention" in given else _size(given, _DATA_ON_THIS_HOST) or _size(given, _DATA) or 1
    return Parallelism(
        data_parallel_size=data,
        tensor_parallel_size=_size(given, _TENSOR) or 1,
        pipeline_parallel_size=_size(given, _PIPELINE) or 1,
    )


def _size(given: Mapping[str, str], names: Sequence[str]) -> int | None:
    text = next((given[name] for name in names if name in given), "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 4 and int(text) else None


def _rank_of_own_worker(arguments: Sequence[str]) -> int | None:
    """None for any process but a worker of homenode's on an accelerator: those on CPUs place their own threads."""
    if len(arguments) < 2 or _OWN_WORKER not in arguments[:-1]:
        return None
    found = _DRIVEN.fullmatch(arguments[-1])
    return int(found[1] or 0) if found else None


def _hint_of_environment(environ: Mapping[str, str]) -> RankHint | None:
    rank = rank_of_environment(environ)
    return None if rank is None else RankHint("worker", rank)
