"""The table of metrics: every family that /metrics of a server or of a proxy shows, and where its figures come from.

A new one is a row here: of an engine it reads `EngineStats`. Names are the field's, and together with types and
labels a promise (docs/compatibility.md); `python -m tools.metrics_table` writes docs/metrics.md from the rows. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

from homenode.engine.messages import (
    STEP_TIME_BOUNDS,
    STEP_TOKEN_BOUNDS,
    WAIT_REASONS,
    DiskStats,
    EngineState,
    EngineStats,
    ReplicaStats,
    StateStats,
)
from homenode.server.keys.counts import GENERATED_TOKENS, PROMPT_TOKENS, REFUSALS, REQUESTS, RUNNING
from homenode.server.monitoring.metric import (
    BucketCounts,
    MetricGroup,
    MetricRow,
    by_label,
    counted,
    counter,
    gauge,
    histogram,
    timed,
)
from homenode.server.monitoring.snapshots import (
    EngineSnapshot,
    ExpertCounts,
    LifeSnapshot,
    ModelSnapshot,
    ServerSnapshot,
    WeightBytes,
    WorkerStates,
    local_pages,
    memory_pages,
)
from homenode.transfer.scheduler_events import BOUNDS_S, TransferStats

_UP_TO_TEN_MINUTES = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0,
)  # fmt: skip
_BETWEEN_TOKENS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
_WHOLE_REQUEST = (
    0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0,
)  # fmt: skip
_LENGTHS = (
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0, 50_000.0,
    100_000.0, 200_000.0, 500_000.0, 1_000_000.0,
)  # fmt: skip
_FIRST_TOKEN_COARSE = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 40.0, 160.0)
_THROUGH_PROXY = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)


# Each engine: label model_name; of several also engine, and node where each has one to itself

_WORK: tuple[MetricRow[EngineStats], ...] = (
    gauge("num_requests_running", "Requests the engine is computing.", lambda now: now.num_running),
    gauge("num_requests_waiting", "Requests waiting for the engine.", lambda now: now.num_waiting),
    gauge("kv_cache_usage_perc", "Share of the KV blocks in use; 1 means 100 percent.", lambda now: now.kv_usage),
    counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", lambda now: now.prefix_queries),
    counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.", lambda now: now.prefix_hits),
    counter("num_preemptions", "Preemptions for lack of KV blocks.", lambda now: now.preemptions),
    counter("prompt_tokens", "Prompt tokens processed.", lambda now: now.prompt_tokens),
    counter("generation_tokens", "Tokens generated.", lambda now: now.generation_tokens),
    counter("spec_decode_num_draft_tokens", "Tokens that were drafted and verified.", lambda now: now.drafted_tokens),
    counter("spec_decode_num_accepted_tokens", "Drafted tokens that were right.", lambda now: now.accepted_tokens),
    counter(
        "spec_decode_num_accepted_tokens_per_pos",
        "Drafted tokens that were right, by how many were drafted before them.",
        lambda now: [((str(position),), count) for position, count in enumerate(now.accepted_by_position)],
        "position",
    ),
    counter(
        "kv_cache_released_bytes",
        "KV memory given back to the machine after a time of disuse.",
        lambda now: now.kv_released_bytes,
    ),
    counter(
        "kv_cache_growths_refused",
        "Times KV memory could not grow, as the machine had no memory.",
        lambda now: now.kv_growths_refused,
    ),
    gauge(
        "memory_bytes",
        "Weights and KV memory, by kind of page.",
        memory_pages,
        "use",
        "pages",
    ),
    gauge(
        "numa_pages_local_ratio",
        "Share of the pages planned for a node (all: for several in turn) that are on it.",
        local_pages,
        "use",
        "node",
    ),
    histogram(
        "step_time_seconds",
        "Seconds of a step.",
        STEP_TIME_BOUNDS,
        lambda now: [((kind,), BucketCounts(counts, total)) for kind, (*counts, total) in now.step_times.items()],
        "kind",
    ),
    histogram(
        "step_tokens",
        "Tokens that a step computed: of prompts, and one of each sequence that decodes.",
        STEP_TOKEN_BOUNDS,
        lambda now: BucketCounts(now.step_sizes or [0.0] * (len(STEP_TOKEN_BOUNDS) + 1), now.step_tokens),
    ),
    gauge(
        "step_time_error_ratio",
        "By how much of its time a step was expected wrongly, on average of late.",
        lambda now: by_label(now.step_errors),
        "kind",
    ),
    gauge(
        "num_requests_waiting_by_reason",
        "Requests waiting for the engine, by what those in the queue lack first.",
        lambda now: [((reason,), now.waiting_for.get(reason, 0)) for reason in WAIT_REASONS],
        "reason",
    ),
)
_EXPERTS_IN_COMMON: tuple[MetricRow[WeightBytes], ...] = (
    gauge("weight_bytes", "Weights that an engine keeps itself.", lambda now: now.weight_bytes),
    gauge(
        "shared_weight_bytes",
        "Experts that an engine reads where others keep them.",
        lambda now: now.shared_weight_bytes,
    ),
)
_TRANSFER: tuple[MetricRow[TransferStats], ...] = (
    gauge(
        "kv_transfer_pinned_pages",
        "Pages of KV kept still for a hand-over: until the receiver has read them (sender), or a request takes them "
        "(receiver).",
        lambda now: now.pinned_pages,
    ),
    gauge(
        "kv_transfer_waiting",
        "Hand-overs that wait: for room (sender), or for the rest of their KV (receiver).",
        lambda now: now.waiting,
    ),
    gauge("kv_transfer_peers", "Engines connected.", lambda now: now.peers),
    counter("kv_transfer_bytes", "Bytes of KV handed over, copied or not.", lambda now: now.bytes),
    counter("kv_transfer_pages", "Pages of KV handed over.", lambda now: now.pages),
    counter(
        "kv_transfer_in_place_pages",
        "Pages of these that were read where the sender has them, without a copy.",
        lambda now: now.in_place_pages,
    ),
    counter(
        "kv_transfer_held_pages", "Pages not handed over because the receiver had them.", lambda now: now.held_pages
    ),
    counter("kv_transfer_completed", "Hand-overs that ended well.", lambda now: now.completed),
    counter("kv_transfer_waits", "Hand-overs that had to wait for room.", lambda now: now.waits),
    counter(
        "kv_transfer_lease_expiries",
        "Hand-overs given up because the receiver neither read nor renewed in time.",
        lambda now: now.expired,
    ),
    counter("kv_transfer_late_signals", "Done signals that came after that.", lambda now: now.late),
    counter(
        "kv_transfer_early_signals",
        "Done signals that came before all pages were announced.",
        lambda now: now.early,
    ),
    counter("kv_transfer_duplicate_signals", "Signals that said nothing new.", lambda now: now.duplicates),
    counter(
        "kv_transfer_unknown_signals",
        "Done signals about hand-overs that are not known, or not any more.",
        lambda now: now.unknown,
    ),
    counter("kv_transfer_forged_signals", "Frames about another engine's hand-over.", lambda now: now.forged),
    counter(
        "kv_transfer_breaker_opens",
        "Times nothing was offered to a receiver for a while, as it had no room.",
        lambda now: now.breaker_opens,
    ),
    counter("kv_transfer_forgotten", "Tickets that no request came for.", lambda now: now.forgotten),
    counter(
        "kv_transfer_quarantined",
        "Hand-overs whose blocks a sender that does not answer may still write; they stay untouched.",
        lambda now: now.quarantined,
    ),
    counter(
        "kv_transfer_poisoned_pages", "Pages given up after they were wrong twice.", lambda now: now.poisoned_pages
    ),
    counter(
        "kv_transfer_digest_mismatches",
        "Pages whose bytes were not what the sender had promised; they were not used.",
        lambda now: now.digest_mismatches,
    ),
    counter(
        "kv_transfer_refusals",
        "Hand-overs refused before they began, by reason.",
        lambda now: by_label(now.refused),
        "reason",
    ),
    counter(
        "kv_transfer_failures",
        "Hand-overs that began and ended badly, by reason; the receiver computes what is missing.",
        lambda now: by_label(now.failed),
        "reason",
    ),
    counter(
        "kv_transfer_bad_frames",
        "Frames dropped, by what was wrong with them.",
        lambda now: by_label(now.bad_frames),
        "reason",
    ),
    histogram(
        "kv_transfer_seconds",
        "From the offer of a hand-over to its end, if that was a good one.",
        BOUNDS_S,
        lambda now: BucketCounts(now.durations, now.seconds),
    ),
)
_RECOMPUTED: tuple[MetricRow[EngineStats], ...] = (
    counter(
        "kv_transfer_recomputed_tokens",
        "Prompt tokens computed here, beyond the last one, of requests whose KV was to come from another engine.",
        lambda now: now.recomputed_tokens,
    ),
)
_WORKERS: tuple[MetricRow[WorkerStates], ...] = (
    counter(
        "stage_busy_seconds",
        "Seconds a stage computed.",
        lambda now: [((str(stage.stage),), stage.busy_s) for stage in now.stages],
        "stage",
    ),
    counter(
        "stage_wait_seconds",
        "Seconds a stage did not compute while steps were in flight: bubbles.",
        lambda now: [((str(stage.stage),), stage.wait_s) for stage in now.stages],
        "stage",
    ),
    gauge("workers", "Workers, by state.", lambda now: now.by_state(), "state"),
    counter("worker_restarts", "Times a worker was replaced.", lambda now: now.restarts),
)
_BARRIERS: tuple[MetricRow[float], ...] = (
    gauge(
        "barrier_wait_ratio",
        "Share of the time of recent steps in which the first compute thread waited for the others; of several workers "
        "the largest.",
        lambda share: share,
    ),
)
_EXPERTS: tuple[MetricRow[ExpertCounts], ...] = (
    counter(
        "expert_tokens",
        "Tokens that an expert was chosen for, over all layers.",
        lambda now: [((str(expert),), count) for expert, count in enumerate(now.tokens)],
        "expert",
    ),
    gauge(
        "expert_imbalance",
        "Tokens of a layer's most used expert, in times the mean of its experts.",
        lambda now: [((str(layer),), ratio) for layer, ratio in now.imbalance],
        "layer",
    ),
)
_EXPERTS_BY_LAYER: tuple[MetricRow[ExpertCounts], ...] = (
    counter(
        "expert_layer_tokens",
        "Tokens that an expert of a layer was chosen for.",
        lambda now: [
            ((str(layer), str(expert)), count)
            for layer, _ in now.imbalance
            for expert, count in enumerate(now.layers[layer])
        ],
        "layer",
        "expert",
    ),
)
_STATES: tuple[MetricRow[StateStats], ...] = (
    gauge("state_slots", "Slots of the state memory.", lambda now: now.slots),
    gauge(
        "state_slots_used", "Slots of running requests, and of snapshots that are being written.", lambda now: now.used
    ),
    gauge("state_snapshots", "Slots with a snapshot that the prefix cache can find.", lambda now: now.snapshots),
    counter("state_snapshot_hits", "Requests that went on from a snapshot.", lambda now: now.hits),
    counter(
        "state_recomputed_tokens",
        "Tokens computed again, as the prefix cache had their KV, but no state after them.",
        lambda now: now.recomputed_tokens,
    ),
)
_DISK: tuple[MetricRow[DiskStats], ...] = (
    gauge("kv_disk_bytes", "Bytes of KV blocks in --kv-disk, whoever left them.", lambda now: now.nbytes),
    counter("kv_disk_hit_tokens", "Prompt tokens whose KV was read from disk and used.", lambda now: now.hit_tokens),
    counter("kv_disk_stored_tokens", "Tokens whose KV was written to disk.", lambda now: now.stored_tokens),
    counter(
        "kv_disk_rejected_blocks",
        "Blocks on disk that were not what was written, and were removed.",
        lambda now: now.rejected_blocks,
    ),
    counter("kv_disk_read_seconds", "Seconds of reading KV blocks from disk.", lambda now: now.read_s),
    gauge("kv_parked_bytes", "Bytes of KV blocks that --kv-park-size keeps in memory.", lambda now: now.parked_bytes),
    counter(
        "kv_parked_hit_tokens", "Prompt tokens whose KV was found there and used.", lambda now: now.parked_hit_tokens
    ),
    counter("kv_disk_write_seconds", "Seconds of writing KV blocks to disk.", lambda now: now.write_s),
)
ENGINE: tuple[MetricGroup[EngineSnapshot, Any], ...] = (
    MetricGroup(lambda engine: engine.stats, _WORK),
    MetricGroup(
        lambda engine: engine.weights,
        _EXPERTS_IN_COMMON,
        wanted=lambda engines: any(now.shared_weight_bytes for now in engines),
    ),
    MetricGroup(lambda engine: engine.transfer, _TRANSFER),
    MetricGroup(lambda engine: engine.stats if engine.hands_kv_over else None, _RECOMPUTED),
    MetricGroup(lambda engine: engine.workers, _WORKERS),
    MetricGroup(lambda engine: engine.barrier_wait, _BARRIERS),
    MetricGroup(lambda engine: engine.experts, _EXPERTS),
    MetricGroup(lambda engine: engine.experts if engine.experts and engine.experts.layers else None, _EXPERTS_BY_LAYER),
    MetricGroup(lambda engine: engine.stats.states, _STATES),
    MetricGroup(lambda engine: engine.stats.disk, _DISK),
)

# Each of several engines, over its lives

REPLICA: tuple[MetricGroup[ReplicaStats, ReplicaStats], ...] = (
    MetricGroup(
        lambda engine: engine,
        (
            gauge(
                "engine_state",
                "1 for the state an engine is in.",
                lambda engine: [((state,), engine.state == state) for state in get_args(EngineState)],
                "state",
            ),
            counter("engine_restarts", "Times an engine was started again.", lambda engine: engine.restarts),
            counter(
                "requests_moved",
                "Requests another engine went on with when this one was lost.",
                lambda engine: engine.moved,
            ),
        ),
    ),
)

# Each model: label model_name

_CACHE_LABELS = ("block_size", "num_gpu_blocks", "enable_prefix_caching", "cache_dtype")
_REJECTIONS: tuple[MetricRow[ModelSnapshot], ...] = (
    counter(
        "admission_rejections",
        "Requests turned away.",
        lambda model: by_label(model.rejected),
        "reason",
    ),
)
_START: tuple[MetricRow[ModelSnapshot], ...] = (
    gauge(
        "start_phase_seconds",
        "Seconds from the beginning of the process `homenode serve` to the end of a phase of its start.",
        lambda model: model.start_phases,
        "process",
        "phase",
    ),
)
_CACHE: tuple[MetricRow[ModelSnapshot], ...] = (
    gauge(
        "cache_config_info",
        "1, and as labels what does not change of KV memory and the prefix cache.",
        lambda model: [(tuple(model.cache[label] for label in _CACHE_LABELS), 1)],
        *_CACHE_LABELS,
    ),
)
MODEL: tuple[MetricGroup[ModelSnapshot, ModelSnapshot], ...] = (
    MetricGroup(lambda model: model, _REJECTIONS),
    MetricGroup(lambda model: model if model.start_phases else None, _START),
    MetricGroup(lambda model: model if model.cache else None, _CACHE),
)

# Each of several models: label model_name

_LIVES: tuple[MetricRow[LifeSnapshot], ...] = (
    counter("model_loads", "Times a model was loaded.", lambda model: model.loads),
    counter("model_unloads", "Times a model was unloaded.", lambda model: model.unloads),
    counter(
        "model_load_failures",
        "Times a model could not be loaded, or its engine was lost.",
        lambda model: model.failures,
    ),
    gauge("model_state", "1 for the state a model is in.", lambda model: by_label(model.states), "state"),
    gauge(
        "model_memory_bytes",
        "Memory that a model may take, by node, while it is loaded.",
        lambda model: by_label(model.memory),
        "node",
    ),
    gauge("model_requests_waiting", "Requests that wait for a model to be loaded.", lambda model: model.waiting),
)
LIFE: tuple[MetricGroup[LifeSnapshot, LifeSnapshot], ...] = (MetricGroup(lambda model: model, _LIVES),)

# Each model, counted by the fronts: label model_name

CACHED_SHARES = ("0", "0-0.5", "0.5-0.9", "0.9-1")  # parts of a prompt; one that is a bound belongs below it
QUEUE_TIME = timed("request_queue_time_seconds", "From arrival to the engine.", _UP_TO_TEN_MINUTES)
PREFILL_TIME = timed(
    "request_prefill_time_seconds", "From the engine to the first token of a sequence that ended well.", _WHOLE_REQUEST
)
DECODE_TIME = timed(
    "request_decode_time_seconds", "From the first token to the last of a sequence that ended well.", _WHOLE_REQUEST
)
INFERENCE_TIME = timed(
    "request_inference_time_seconds", "From the engine to the last token of a sequence that ended well.", _WHOLE_REQUEST
)
TIME_PER_TOKEN = timed(
    "request_time_per_output_token_seconds",
    "From the first token to the last, for each behind the first; 0 of a sequence of one.",
    _BETWEEN_TOKENS,
)
PROMPT_LENGTH = timed("request_prompt_tokens", "Tokens of the prompt of a sequence that ended well.", _LENGTHS)
ANSWER_LENGTH = timed("request_generation_tokens", "Tokens of a sequence that ended well.", _LENGTHS)
MOST_TOKENS = timed("request_params_max_tokens", "Tokens that a sequence was allowed.", _LENGTHS)
ANSWERS = timed("request_params_n", "Sequences asked for to a prompt.", (1.0, 2.0, 5.0, 10.0, 20.0))
FIRST_TOKEN_BY_SHARE = timed(
    "time_to_first_token_by_cached_seconds",
    "From arrival to the first token, by the part of the prompt whose KV was there.",
    _FIRST_TOKEN_COARSE,
    "cached_share",
)
FIRST_TOKEN = timed("time_to_first_token_seconds", "From arrival to the first token.", _UP_TO_TEN_MINUTES)
BETWEEN_TOKENS = timed("inter_token_latency_seconds", "From one token to the next.", _BETWEEN_TOKENS)
WHOLE_REQUEST = timed("e2e_request_latency_seconds", "From arrival to the last token.", _WHOLE_REQUEST)
FINISHED = counted("request_success", "Sequences finished, by reason.", "finished_reason")
FRONT_RESTARTS = counted("front_restarts", "Times a front was started again.")
FRONT = (
    QUEUE_TIME, PREFILL_TIME, DECODE_TIME, INFERENCE_TIME, FIRST_TOKEN, FIRST_TOKEN_BY_SHARE, BETWEEN_TOKENS,
    TIME_PER_TOKEN, WHOLE_REQUEST, PROMPT_LENGTH, ANSWER_LENGTH, MOST_TOKENS, ANSWERS, FINISHED, FRONT_RESTARTS,
)  # fmt: skip
# What a front tells the others; a scrape shows it among `admission_rejections`.
FRONT_REJECTIONS = counted("front_rejections", "Requests a front turned away.", "reason")

# Each named key: label key; of a server model_name, of a proxy with proxy_ before the name

KeyTotal = Callable[[int], int]  # from a counter of `keys/counts.py` to what all fronts counted
_KEYS: tuple[MetricRow[KeyTotal], ...] = (
    gauge("key_requests_running", "Requests of a key under way.", lambda total: total(RUNNING)),
    counter("key_requests", "Requests of a key that were let in.", lambda total: total(REQUESTS)),
    counter(
        "key_tokens",
        "Tokens of a key.",
        lambda total: [(("prompt",), total(PROMPT_TOKENS)), (("generated",), total(GENERATED_TOKENS))],
        "kind",
    ),
    counter(
        "key_rejections",
        "Requests of a key over one of its limits.",
        lambda total: [((limit,), total(number)) for limit, number in REFUSALS.items()],
        "limit",
    ),
)
KEY: tuple[MetricGroup[KeyTotal, KeyTotal], ...] = (MetricGroup(lambda total: total, _KEYS),)

# Each server of a proxy: labels role and server

PROXY_SERVER: tuple[MetricGroup[ServerSnapshot, ServerSnapshot], ...] = (
    MetricGroup(
        lambda server: server,
        (
            gauge(
                "proxy_server_state",
                "1 for the state a server is in.",
                lambda server: by_label(server.states),
                "state",
            ),
            gauge(
                "proxy_server_breaker_open",
                "1 while a server is left alone after failures.",
                lambda server: server.breaker_open,
            ),
            gauge("proxy_server_lives", "How often a server was found anew.", lambda server: server.lives),
            gauge("proxy_server_requests", "Requests a server has from this proxy.", lambda server: server.requests),
            gauge(
                "proxy_server_waiting_tokens",
                "Prompt tokens, estimated, that wait at a server.",
                lambda server: server.waiting_tokens,
            ),
            gauge(
                "proxy_server_slowness",
                "Times as long as the fastest of its role that a server takes for as much work, from 2 on; else 1.",
                lambda server: server.slowness,
            ),
        ),
    ),
)

# The proxy itself

PROXY: tuple[MetricGroup[Mapping[str, int], Mapping[str, int]], ...] = (
    MetricGroup(lambda phases: phases, (gauge("proxy_requests_in_flight", "Requests by phase.", by_label, "phase"),)),
)
PROXY_REQUESTS = counted(
    "proxy_requests", "Requests, by the way their prompt was computed and what became of them.", "way", "outcome"
)
PROXY_DIRECT = counted("proxy_direct", "Requests that were not to be handed over, by reason.", "reason")
PROXY_FAULTS = counted("proxy_faults", "Requests that a server failed.", "role", "server", "fault")
PROXY_FALLBACKS = counted("proxy_fallbacks", "Requests to be handed over whose prompt a decoder computed.")
PROXY_REFUSED = counted("proxy_refused", "Requests turned away.", "reason")
PROXY_RELEASES = counted("proxy_releases", "Tickets given up, by how a server took it.", "outcome")
PROXY_PREFILL = timed("proxy_prefill_seconds", "From asking a prefill server to its answer.", _THROUGH_PROXY)
PROXY_FIRST_BYTE = timed(
    "proxy_time_to_first_byte_seconds", "From a request's arrival to the first byte of its answer.", _THROUGH_PROXY
)
PROXY_WHOLE = timed("proxy_request_seconds", "From a request's arrival to its end.", _THROUGH_PROXY)
PROXY_COUNTED = (
    PROXY_REQUESTS, PROXY_DIRECT, PROXY_FAULTS, PROXY_FALLBACKS, PROXY_REFUSED, PROXY_RELEASES, PROXY_PREFILL,
    PROXY_FIRST_BYTE, PROXY_WHOLE,
)  # fmt: skip


def rows_of(groups: Iterable[MetricGroup[Any, Any]]) -> tuple[MetricRow[Any], ...]:
    """All rows of some groups."""
    return tuple(row for group in groups for row in group.rows)
