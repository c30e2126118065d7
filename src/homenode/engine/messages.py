"""Frames between the front (HTTP, text) and the engine (scheduler, compute): msgspec structs, msgpack encoded, tagged
by type.

A frame on the wire is a 4-byte little-endian length (at most `net.message_frames.MAX_FRAME`) and that many bytes.
Nothing is ever unpickled.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from homenode.engine.binding import EngineBinding
from homenode.engine.request import AdapterChoice, Request, TokenLogprob
from homenode.model.identity import ModelIdentity
from homenode.model.pooling import TextForm
from homenode.transfer.scheduler_events import TransferStats
from homenode.transfer.wire.message import Published

# Seconds by which steps are counted, ascending.
# Why requests wait: all slots of --max-num-seqs are taken; KV memory is; the steps have no room or time for them yet;
# another one computes a prompt that begins alike; another engine has no room yet, or its KV is to come.
WaitReason = Literal["slots", "blocks", "turn", "prefix", "kv"]
WAIT_REASONS: tuple[WaitReason, ...] = get_args(WaitReason)
STEP_TIME_BOUNDS = (
    0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.25, 0.3, 0.4, 0.6, 1, 2, 5, 20,
)  # fmt: skip

STEP_TOKEN_BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)  # by which steps are counted


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Front to engine: new requests."""

    requests: list[Request]


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Front to engine: forget these requests. `reason` becomes their finish reason (`abort`, or `stop` for a matched
    stop string).
    """

    ids: list[int]
    reason: str = "abort"


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Front to engine: take no more requests, finish the running ones within `timeout_s`, then end."""

    timeout_s: float


class ReleaseKv(msgspec.Struct, frozen=True, tag=True):
    """Front to engine: nobody wants the hand-over of KV under this ticket any more. Unknown and finished ones are
    ignored.
    """

    ticket: str
    reason: str


class ResetPrefixCache(msgspec.Struct, frozen=True, tag=True):
    """Front to engine: forget all that the prefix cache holds in KV memory; those who run keep what they have."""


class Ping(msgspec.Struct, frozen=True, tag=True):
    """Front to engine: answer with Heartbeat from the loop itself."""

    number: int


class EngineLoading(msgspec.Struct, frozen=True, tag=True):
    """Engine to front, while it starts: bytes of the model's files taken in so far, and in all."""

    done: int
    total: int


class PoolingReady(msgspec.Struct, frozen=True):
    """The result that an engine makes of texts in place of further text: vectors of `width`, or with `labels` a score
    of each. `rows`: one of `homenode.model.pooling.POOLING_KINDS`. `template` and `text`: see
    `homenode.model.pooling.PoolingSpec`.
    """

    rows: str
    width: int
    labels: list[str] = []
    template: str = ""
    text: TextForm = TextForm()


class QueueLimits(msgspec.Struct, frozen=True):
    """The requests that engines let in while they have none: `running` begin at once, behind them `waiting` may wait
    with `waiting_tokens` tokens of prompts; 0 of either: any number.
    """

    running: int = 0
    waiting: int = 0
    waiting_tokens: int = 0

    @property
    def most_requests(self) -> int | None:
        """The requests that are let in together; None: any number."""
        return self.running + self.waiting if self.waiting else None


class EngineReady(msgspec.Struct, frozen=True, tag=True):
    """Engine to front, once: what was loaded and what fits."""

    model: str
    max_model_len: int
    vocab_size: int
    num_blocks: int
    block_size: int
    max_num_batched_tokens: int
    max_num_seqs: int
    chunked_prefill: bool
    sampling_defaults: dict[str, float] = {}  # the model's own: temperature, top_p, top_k, min_p, repetition_penalty
    details: dict[str, object] = {}
    pooling: PoolingReady | None = None  # None: it generates text
    row_columns: int = 0  # of rows that prompts may have in places of embeddings; 0: they have token ids alone
    identity: ModelIdentity | None = None  # of the model that its workers have read; None: nobody says
    adapters: dict[str, AdapterChoice] = {}  # by the names under which clients ask for the model with one
    queue: QueueLimits = QueueLimits()


class Heartbeat(msgspec.Struct, frozen=True, tag=True):
    """Engine to front: the loop was alive at `at` (time.monotonic())."""

    number: int
    at: float


class Output(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """New tokens of a request, or its end. `finish_reason`: stop, length, abort, error; the stopping EOS or stop token
    is included in tokens.
    """

    id: int
    tokens: list[int] = []
    logprobs: list[TokenLogprob] = []
    prompt_logprobs: list[TokenLogprob | None] | None = None  # once, with the first output; the first entry is None
    finish_reason: str | None = None
    stop_token: int | None = None  # the EOS or stop token id that ended it
    error: str | None = None
    error_kind: str | None = None  # class name in homenode.errors: CapacityError, OverloadedError, InternalError...
    retry_after_s: float | None = None
    cached_tokens: int = (
        0  # prompt tokens found in the prefix cache, or handed over by another engine (with the first output)
    )
    disk_tokens: int = 0  # of those, the ones whose KV came from disk (with the first output)
    queued_s: float = 0.0  # seconds until the request was first admitted (with the first output)
    kv_came: tuple[float, float] | None = None  # see `kv.sequence.Sequence` (with the first output)
    num_preemptions: int = 0
    forced_tokens: int = 0  # of `tokens`, those that the grammar left no choice about
    drafted_tokens: int = 0  # drafted for the sequence since its last output...
    accepted_tokens: int = 0  # ...and those of them that were right
    pooled: bytes = b""  # of a request that pools, with its end: float32, little-endian


class Outputs(msgspec.Struct, frozen=True, tag=True):
    """Engine to front: everything one step produced."""

    outputs: list[Output]


class StateStats(msgspec.Struct, frozen=True, array_like=True):
    """Use of the state memory: gauges of now, and counters since the start."""

    slots: int = 0
    used: int = 0  # slots of running sequences, and of snapshots that are being written
    snapshots: int = 0  # slots that the prefix cache has
    hits: int = 0  # requests that went on from a snapshot
    recomputed_tokens: int = 0  # tokens that were computed again, as their KV was there, but no state after them


class DiskStats(msgspec.Struct, frozen=True, array_like=True):
    """KV blocks on disk: gauges of now, and counters since the start."""

    nbytes: int = 0  # of all that lies there, whoever has left it
    parked_bytes: int = 0  # of copies in memory
    hit_tokens: int = 0  # that were read from disk and were of use
    stored_tokens: int = 0  # that can be found again
    rejected_blocks: int = 0  # that were not what they should be
    read_s: float = 0.0
    write_s: float = 0.0
    parked_hit_tokens: int = 0  # that were found among copies in memory and were of use


class EngineStats(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Engine to front: counters since the start and gauges of now; sent after a step at most every 100 ms, and when
    things come to rest.
    """

    num_running: int = 0
    num_waiting: int = 0
    kv_usage: float = 0.0  # 0..1
    prefix_queries: int = 0  # tokens looked up
    prefix_hits: int = 0  # tokens found
    preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    drafted_tokens: int = 0  # guesses of tokens that steps computed...
    accepted_tokens: int = 0  # ...and those of them that were right
    accepted_by_position: list[int] = []  # ...by how many were drafted before them
    steps: int = 0
    step_tokens: int = 0
    step_sizes: list[float] = []  # steps within each of `STEP_TOKEN_BOUNDS` tokens, and beyond the last
    waiting_for: dict[str, int] = {}  # of those that wait, by `WaitReason`
    waiting_for_kv: int = 0  # requests that wait for another engine: for room there, or for their KV to come
    handed_tokens: int = 0  # positions whose KV came from another engine and was used
    rejected: dict[str, int] = {}  # by reason
    # By kind of step: the steps within each of `STEP_TIME_BOUNDS` and beyond the last, and the seconds of all.
    step_times: dict[str, list[float]] = {}
    step_errors: dict[str, float] = {}  # by kind, of late: by how much of its time a step was expected wrongly
    kv_released_bytes: int = 0  # KV memory that went back to the machine
    kv_growths_refused: int = 0  # times the machine had no memory for KV
    compute: dict[str, object] = {}
    recomputed_tokens: int = (
        0  # prompt tokens computed here, beyond the last one, of requests whose KV was to come from elsewhere
    )
    transfer: TransferStats | None = None  # None: this engine hands no KV over
    states: StateStats | None = None  # None: no layer of the model keeps a state
    disk: DiskStats | None = None  # None: no KV is kept on disk


EngineState = Literal["loading", "ready", "silent", "restarting", "gone"]


class ReplicaStats(msgspec.Struct, frozen=True):
    """Figures of one of several engines behind one front; made in the front.

    `state`: loading, ready, silent (its loop does not answer; it gets no requests), restarting, gone (given up).
    `statistics` count from the start of the service, over restarts. `moved`: requests that were taken over by another
    engine when it was lost. `published`: what its present process says of its part in handing KV over; None without a
    part, or while there is no process.
    """

    number: int
    node: int | None
    state: EngineState
    restarts: int
    moved: int
    statistics: EngineStats
    published: Published | None = None


class ServingChanged(msgspec.Struct, frozen=True, tag=True):
    """Engine to front: whether steps can be computed now. `reason`: why not, such as a worker that is being replaced.
    Requests are taken all the same.
    """

    serving: bool
    reason: str = ""


class FreeCpusChanged(msgspec.Struct, frozen=True, tag=True):
    """Engine to front: threads that do not compute disturb nobody on these CPUs now, in place of those that were said
    when it was ready.
    """

    cpus: list[int]


class Fatal(msgspec.Struct, frozen=True, tag=True):
    """Engine to front: the engine cannot start or go on; `kind` is a class name of homenode.errors."""

    kind: str
    message: str


class ListRequests(msgspec.Struct, frozen=True, tag=True):
    """Front to engine: answer with RequestList, of at most `most` requests that run and as many that wait."""

    number: int
    most: int


class RequestRow(msgspec.Struct, frozen=True, array_like=True):
    """One request that an engine has. `prompt`: tokens of its prompt, `computed`: those whose KV is there, `cached`:
    those of them found in the prefix cache. `waits_for`: None while it runs. `age_s`: seconds since it came.
    """

    id: int
    prompt: int
    computed: int
    generated: int
    cached: int
    age_s: float
    waits_for: WaitReason | None
    preemptions: int


class RequestList(msgspec.Struct, frozen=True, tag=True):
    """Engine to front: the requests that it has now, those that run first. `left_out`: how many more there are."""

    number: int
    rows: list[RequestRow]
    left_out: int = 0


class MoveEngine(msgspec.Struct, frozen=True, tag=True):
    """Front to one of several engines: go on in another place of the same nodes, between two steps."""

    place: EngineBinding


ToEngine = Submit | Abort | ReleaseKv | ResetPrefixCache | Drain | Ping | ListRequests | MoveEngine
ToFront = (
    EngineLoading
    | EngineReady
    | Heartbeat
    | RequestList
    | Outputs
    | EngineStats
    | ServingChanged
    | FreeCpusChanged
    | Fatal
)
