"""System calls without which an engine's settings cannot be met, where a filter refuses them. Pure.

What goes on without a call is told instead (`host.bind.base.optional_calls`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from homenode.engine.config import EngineConfig
from homenode.errors import UnsupportedError
from homenode.host.bind.base.optional_calls import LOCAL_SOCKET, MEMORY_FILE
from homenode.host.topology.finding import Finding


@dataclass(frozen=True)
class _Need:
    """`call` is needed where `asked` holds, of settings and of whether experts are kept in common; `why` says what
    for, and `instead` what does without."""

    call: str
    setting: str
    asked: Callable[[EngineConfig, bool], bool]
    why: str
    instead: str = ""


def _has_workers(config: EngineConfig, of: int) -> bool:
    return of > 1 and config.parallel.executor != "ray"  # those of Ray are on hosts that this one knows nothing of


_SHARED = "workers of one host share memory"
_HANDED = "KV that is handed over lies in memory that can be shared"
_NEEDS = (
    _Need(
        MEMORY_FILE,
        "tensor_parallel_size",
        lambda config, _: _has_workers(config, config.parallel.tensor_parallel_size),
        _SHARED,
        "one worker (--tensor-parallel-size 1) needs none",
    ),
    _Need(
        MEMORY_FILE,
        "pipeline_parallel_size",
        lambda config, _: _has_workers(config, config.parallel.pipeline_parallel_size),
        _SHARED,
        "one stage (--pipeline-parallel-size 1) needs none",
    ),
    _Need(
        MEMORY_FILE,
        "enable_expert_parallel",
        lambda _, common: common,
        "engines keep experts in common in shared memory",
        "with --no-enable-expert-parallel each keeps its own",
    ),
    _Need(MEMORY_FILE, "pd_role", lambda config, _: config.transfer.on, _HANDED),
    _Need(
        LOCAL_SOCKET,
        "transfer_channel",
        lambda config, _: config.transfer.on and config.transfer.transfer_channel == "shm",
        "over shm engines meet at Unix domain sockets",
        "--transfer-channel tcp needs none",
    ),
)


def needed_call_problems(
    config: EngineConfig, *, experts_in_common: bool, refused: Mapping[str, Finding]
) -> Iterator[UnsupportedError]:
    """A problem for each setting that cannot be met. `refused`: by the name of a call, what is told of its refusal."""
    for need in _NEEDS:
        if need.call in refused and need.asked(config, experts_in_common):
            told = refused[need.call]
            seen = told.message.partition(":")[0]
            remedy = f"{told.remedy.rstrip('.')}; {need.instead}" if need.instead else told.remedy.rstrip(".")
            flag = f"--{need.setting.replace('_', '-')}"
            yield UnsupportedError(f"{flag}: {need.why}, and {seen}. {remedy}", param=need.setting)
