"""Events: what can happen to the scheduler, and what it asks for in return. Time enters only through the events."""

from __future__ import annotations

import msgspec

from homenode.engine.messages import Output
from homenode.engine.request import Request
from homenode.engine.step import StepResult
from homenode.transfer.scheduler_events import ToAgent, ToScheduler


class RequestArrived(msgspec.Struct, frozen=True, tag=True):
    """A new request."""

    now: float
    request: Request


class Aborted(msgspec.Struct, frozen=True, tag=True):
    """The client lost interest (`abort`), or a stop string matched (`stop`). Unknown or finished ids are ignored."""

    now: float
    id: int
    reason: str = "abort"


class StepDone(msgspec.Struct, frozen=True, tag=True):
    """The oldest step in flight came back."""

    now: float
    result: StepResult


class StepFailed(msgspec.Struct, frozen=True, tag=True):
    """The oldest step in flight (and every later one) was lost with its worker state; its requests end with an error of
    this kind.
    """

    now: float
    error: str
    kind: str = "InternalError"


class WorkersLost(msgspec.Struct, frozen=True, tag=True):
    """A worker is gone, and with it every step in flight and all KV: requests wait, and are computed again when
    `WorkersBack` comes.

    One that was lost this way too often ends with the error kind `WorkerLostError` (error code `worker_lost`).
    """

    now: float
    error: str


class WorkersBack(msgspec.Struct, frozen=True, tag=True):
    """All workers are there again, knowing of no sequence."""

    now: float


class Ticked(msgspec.Struct, frozen=True, tag=True):
    """Time passed: deadlines are looked at."""

    now: float


class DrainStarted(msgspec.Struct, frozen=True, tag=True):
    """No newcomers from here on."""

    now: float


class CacheReset(msgspec.Struct, frozen=True, tag=True):
    """Nothing that was computed so far is to be found in the prefix cache from here on."""

    now: float


class KvHeadroom(msgspec.Struct, frozen=True, tag=True):
    """The machine was looked at: KV memory may grow by `nbytes` now; `reason`: what it is that sets the limit."""

    now: float
    nbytes: int
    reason: str


class BlocksArrived(msgspec.Struct, frozen=True, tag=True):
    """Of what a store was asked for under `key`, the first `tokens` positions lie verified in their blocks."""

    now: float
    key: str
    tokens: int


class BlocksFailed(msgspec.Struct, frozen=True, tag=True):
    """A store brings no more under `key`, and nothing writes to its blocks from here on. What arrived stays good."""

    now: float
    key: str


class BlocksStored(msgspec.Struct, frozen=True, tag=True):
    """A store does not read the blocks of `key` any more."""

    now: float
    key: str


Event = (
    RequestArrived
    | Aborted
    | StepDone
    | StepFailed
    | WorkersLost
    | WorkersBack
    | Ticked
    | DrainStarted
    | CacheReset
    | KvHeadroom
    | BlocksArrived
    | BlocksFailed
    | BlocksStored
    | ToScheduler
)


class Emit(msgspec.Struct, frozen=True, tag=True):
    """Send these to the clients. An output with a finish reason is a request's last."""

    outputs: list[Output]


class Warn(msgspec.Struct, frozen=True, tag=True):
    """Log this for the operator. `request`: what its client calls the request that it is about, if it is about one."""

    message: str
    request: str = ""


class ToTransfer(msgspec.Struct, frozen=True, tag=True):
    """Tell this to the agent that hands KV over."""

    message: ToAgent


Instruction = Emit | Warn | ToTransfer
