"""The answer of /overview: the machine, the models and their requests at one moment, and the last hour in figures."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from homenode.server.monitoring.history import HistoryPoint
from homenode.server.page.machine_state import MachineState


class RequestShown(Struct):
    """A request that an engine has. `state`: `running` or `waiting`; `why`: what it waits for, and what would help;
    tokens as of `RequestRow`.
    """

    id: str
    state: Literal["running", "waiting"]
    why: str
    prompt: int
    computed: int
    generated: int
    cached: int
    age_s: float
    preemptions: int


class NodeMemory(Struct):
    """Memory of one use (`weights`, `kv`, `scratch`) planned for a node (-1: for several in turn): bytes that are
    there, and of them those where they belong.
    """

    use: str
    node: int
    present: int
    local: int


class EngineShown(Struct):
    """One of several engines of a model."""

    number: int
    node: int | None
    state: str
    restarts: int


class ModelShown(Struct):
    """A served model. `state`: `ok`, or the reason in a word, with `why` in words. `counters` and `gauges` are those of
    /metrics; `memory` where the kernel tells it. `lost_cpu`: by CPU, the share of the time in which its compute thread
    did not have it. `barrier_wait`: the share of steps in which threads waited for each other, where that is known.
    `stages`: seconds that each computed, and did not although steps were in flight (bubbles). `transfer`: of an engine
    that hands KV over, bytes, hand-overs that ended well and badly, and those that wait.
    """

    name: str
    names: list[str]
    state: Literal["ok", "lost", "hindered"]
    why: str
    generates: bool
    max_model_len: int
    max_num_seqs: int
    blocks: int
    block_size: int
    details: dict[str, Any]
    gauges: dict[str, float]
    counters: dict[str, float]
    waiting_for: dict[str, int]
    memory: list[NodeMemory]
    lost_cpu: dict[int, float]
    barrier_wait: float | None
    stages: list[dict[str, Any]]
    transfer: dict[str, int] | None
    engines: list[EngineShown]
    requests: list[RequestShown]
    left_out: int
    sampling_defaults: dict[str, float]


class Overview(Struct):
    """Answer of /overview. `host`: left out where the client knows it (`known`, its fingerprint). `hour`: pieces of the
    last hour that ended after `since`. `ask_again_s`: when to come again, later the more ask.
    """

    kind: Literal["server"]
    version: str
    at: float
    started: int
    ask_again_s: float
    models: list[ModelShown]
    machine: MachineState
    strategies: list[str]
    hour: list[HistoryPoint]
    host: dict[str, Any] | UnsetType = UNSET
