"""Parts of an engine that follow from its plan: the scheduler, and what its front is told."""

from __future__ import annotations

import random
from collections.abc import Sequence

from msgspec.structs import replace

from homenode.engine.kv.block_source import BlockSource
from homenode.engine.memory.state_sizing import state_bytes
from homenode.engine.messages import EngineReady, QueueLimits
from homenode.engine.plan.engine_plan import EnginePlan
from homenode.engine.plan.pooling import pooling_ready
from homenode.engine.request import AdapterChoice
from homenode.engine.runtime.engine import MakeDrafter
from homenode.engine.scheduler.drafts.draft_choice import DraftChoice
from homenode.engine.scheduler.drafts.drafter import Drafter
from homenode.engine.scheduler.scheduler import Scheduler
from homenode.engine.scheduler.steps.step_costs import StepCosts
from homenode.engine.scheduler_config import SchedulerConfig
from homenode.engine.step import WorkerLimits
from homenode.model.checkpoint.index import adapters_of, mmproj_of
from homenode.model.facts import model_facts
from homenode.model.weights.layout import DTYPES
from homenode.sampling import is_open_seed


def make_scheduler(
    plan: EnginePlan,
    limits: WorkerLimits,
    lookahead: int,
    micro_batches: int = 0,
    hash_seed: bytes | None = None,
    stores: Sequence[BlockSource] = (),
    make_drafter: MakeDrafter | None = None,
) -> Scheduler:
    """The scheduler of an engine. `lookahead`: of one with one stage; `micro_batches`: of one with several, see
    `MicroBatching`. `hash_seed`: of the identities of its KV blocks, where others get them or a store keeps them.
    `stores`: see `Scheduler`. `make_drafter`: of who drafts, where anything is drafted; None: `DraftChoice`.
    """
    config, stages, moe = plan.config, plan.worker_layout.workers[-1].stage + 1, plan.checkpoint.spec.moe
    costs = StepCosts(0.0 if moe is None else moe.experts_per_token / moe.num_experts)
    speculation = config.speculation.resolved()
    drafter: Drafter | None = None
    if speculation.method != "off" and plan.checkpoint.spec.pooling is None:
        drafter = (make_drafter or DraftChoice)(speculation, costs, limits.max_drafted)
    return Scheduler(
        config.scheduler,
        config.kv,
        replace(limits, adapters=len(adapters_of(plan.checkpoint))),
        plan.checkpoint.spec.eos_token_ids,
        lookahead=lookahead if stages == 1 else 0,
        stages=stages,
        micro_batches=micro_batches,
        seeds=None if is_open_seed(config.model.seed) else random.Random(config.model.seed),
        hash_seed=hash_seed,
        costs=costs,
        drafter=drafter,
        stores=stores,
    )


def queue_limits(config: SchedulerConfig) -> QueueLimits:
    """Return what the front is told of whom the engine lets in."""
    return QueueLimits(config.max_num_seqs, config.max_num_queued_requests, config.max_num_queued_tokens)


def ready_message(
    plan: EnginePlan, limits: WorkerLimits, seconds: float, notes: Sequence[str], **details: object
) -> EngineReady:
    """Return what the front is told of an engine that took `seconds` to start. `details`: further facts for people and
    metrics.
    """
    config, spec = plan.config, plan.checkpoint.spec
    return EngineReady(
        model=config.model_name,
        max_model_len=limits.max_model_len,
        vocab_size=limits.vocab_size,
        num_blocks=limits.num_blocks,
        block_size=limits.block_size,
        max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
        max_num_seqs=config.scheduler.max_num_seqs,
        chunked_prefill=config.scheduler.enable_chunked_prefill,
        queue=queue_limits(config.scheduler),
        sampling_defaults=dict(spec.generation),
        details={
            "architecture": spec.architecture,
            "model": model_facts(plan.checkpoint),
            "load_seconds": round(seconds, 3),
            "notes": list(notes),
            "kv_bytes": sum(limits.num_blocks * geometry.block_bytes for geometry in plan.geometries),
            "state_slots": limits.state_slots,
            "state_bytes": sum(state_bytes(geometry, limits.state_slots) for geometry in plan.geometries),
            "kv_dtype": plan.geometries[0].dtype,
            "storage": DTYPES.get(config.model.dtype, ""),
            "prefix_caching": config.kv.enable_prefix_caching,
            "kv_grows": limits.chunk_blocks > 0,
            "mmproj": str(mmproj_of(plan.checkpoint) or ""),
            **details,
        },
        pooling=pooling_ready(spec, config.model),
        row_columns=limits.row_columns,
        adapters={
            adapter.name: AdapterChoice(number, adapter.digest)
            for number, adapter in enumerate(adapters_of(plan.checkpoint))
        },
    )
