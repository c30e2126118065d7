"""The way from settings, a model's figures and the machine's allowance to numbers: lengths, blocks, rows,
CPUs. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from homenode.compute.ops import KvGeometry, StepLimits
from homenode.engine.config import EngineConfig
from homenode.engine.devices import CPU
from homenode.engine.experts.sizing import Kept
from homenode.engine.kv.release import floor_bytes
from homenode.engine.memory.growth import taken_whole_because
from homenode.engine.memory.state_sizing import (
    least_kv_memory,
    state_bytes,
    state_interval,
    state_memory_problem,
    state_slots,
)
from homenode.engine.scheduler_config import check_config as check_scheduler
from homenode.engine.step import WorkerLimits
from homenode.errors import CapacityError, UserError
from homenode.host.plan.numa.node_teams import spare_cores
from homenode.host.plan.resources.core_order import fastest_cores, fastest_cpus, without_low_power
from homenode.host.plan.resources.cores import allowed_cores
from homenode.host.plan.variables import kv_cache_memory
from homenode.host.topology.host import Host
from homenode.model.architectures.input_rows import rows_refusal
from homenode.model.spec import ModelSpec
from homenode.units import format_bytes, format_count

_LOGITS_BYTES = 256 * 2**20
_CHUNK_BYTES = 2 << 20
_LEAST_CHUNKS = 8
_MOST_STEP_ROWS = 128 * 2**20  # bytes of rows in place of embeddings that a step may take, half of a frame
_MANY_ROWS = 256  # sampled and scored rows of a step, where the vocabulary allows it


def resolve(config: EngineConfig, spec: ModelSpec, geometry: KvGeometry, memory_available: int) -> WorkerLimits:
    """The limits of one worker, in concrete numbers. `memory_available`: bytes this process may still take, the weights
    being loaded (or subtracted).

    Raises UserError or CapacityError, the first of `problems`.
    """
    found = problems(config, spec, geometry, memory_available)
    if found:
        raise found[0]
    length, left = model_length(config, spec), memory_available - step_bytes(config, spec)
    return WorkerLimits(
        max_model_len=length,
        block_size=config.kv.block_size,
        num_blocks=num_blocks(config, geometry, length, left),
        max_sampled_rows=sampled_rows(config, spec),
        pools=spec.pooling is not None,
        row_columns=row_columns(config, spec),
        vocab_size=spec.vocab_size,
        state_slots=state_slots(config, geometry, kv_bytes(config, left)),
        state_interval=state_interval(config, geometry),
    )


def step_limits(config: EngineConfig, limits: WorkerLimits) -> StepLimits:
    """Bounds of a step, for the program's buffers."""
    scheduler, per_sequence = config.scheduler, -(-limits.max_model_len // limits.block_size)
    return StepLimits(scheduler.max_num_batched_tokens, scheduler.max_num_seqs, limits.max_sampled_rows, per_sequence)


def row_columns(config: EngineConfig, spec: ModelSpec) -> int:
    """Columns of rows that prompts may have in places of embeddings; 0: they have none."""
    return spec.media_columns or (spec.hidden_size if config.model.enable_prompt_embeds else 0)


def problems(config: EngineConfig, spec: ModelSpec, geometry: KvGeometry, memory_available: int) -> list[UserError]:
    """Everything that keeps these settings from working, each naming the flags and the numbers; empty if all
    is well.
    """
    found: list[UserError] = []
    if not 1 <= model_length(config, spec) <= spec.max_position:
        found.append(
            UserError(
                f"--max-model-len {config.model.max_model_len} is more than the "
                f"{format_count(spec.max_position, 'position')} of this model; "
                f"give {spec.max_position} or less",
                param="max_model_len",
            )
        )
    if config.model.enable_prompt_embeds and (problem := _rows_problem(config, spec)):
        found.append(problem)
    length = min(model_length(config, spec), spec.max_position)
    found += check_scheduler(config.scheduler, config.kv, length)
    buffers = step_bytes(config, spec)
    if buffers > memory_available:
        found.append(
            CapacityError(
                f"a step of --max-num-batched-tokens {config.scheduler.max_num_batched_tokens} needs about "
                f"{format_bytes(buffers)} of buffers; "
                f"{format_bytes(memory_available)} are available. Lower it.",
                param="max_num_batched_tokens",
            )
        )
    elif problem := _kv_problem(config, geometry, length, memory_available - buffers):
        found.append(problem)
    return found


def _rows_problem(config: EngineConfig, spec: ModelSpec) -> UserError | None:
    """Return why prompts cannot have rows in place of embeddings; None where they can. A step takes those that it
    computes to every worker.
    """
    if spec.media_columns > spec.hidden_size:
        why = "its rows of pictures are wider than its embeddings"
        return UserError(f"--enable-prompt-embeds does not go with this model: {why}", param="enable_prompt_embeds")
    if reason := rows_refusal(spec):
        return UserError(f"--enable-prompt-embeds does not go with this model: {reason}", param="enable_prompt_embeds")
    step = config.scheduler.max_num_batched_tokens * spec.hidden_size * 4
    if step > _MOST_STEP_ROWS:
        most = _MOST_STEP_ROWS // (4 * spec.hidden_size)
        return UserError(
            f"--enable-prompt-embeds: the rows of a step of --max-num-batched-tokens "
            f"{config.scheduler.max_num_batched_tokens} may take {format_bytes(step)}, and at most "
            f"{format_bytes(_MOST_STEP_ROWS)} are sent to workers. Give {most} or less.",
            param="max_num_batched_tokens",
        )
    return None


def model_length(config: EngineConfig, spec: ModelSpec) -> int:
    """Most tokens of a sequence."""
    return config.model.max_model_len if config.model.max_model_len is not None else spec.max_position


def num_blocks(config: EngineConfig, geometry: KvGeometry, max_model_len: int, memory_available: int) -> int:
    """KV blocks that fit.

    With --kv-cache-memory as many as that holds. Without, as many as the share of the available memory holds, but not
    more than --max-num-seqs sequences of full length could fill: memory beyond that would be touched at start for
    nothing.
    """
    both = kv_bytes(config, memory_available)
    states = state_bytes(geometry, state_slots(config, geometry, both))
    fitting = (both - states) // max(1, geometry.block_bytes)  # a stage may have no layer with keys and values
    if config.kv.kv_cache_memory is not None:
        return fitting
    return min(fitting, config.scheduler.max_num_seqs * -(-max_model_len // geometry.block_size))


def chunk_of(geometry: KvGeometry, num_blocks: int) -> dict[str, int]:
    """Return how many KV blocks are taken and given back together, and their bytes: at most a huge page, so that one
    taken between two steps delays the second by little; of a small KV memory a part of it.
    """
    blocks = max(1, min(_CHUNK_BYTES // max(1, geometry.block_bytes), num_blocks // _LEAST_CHUNKS))
    return {"chunk_blocks": blocks, "chunk_bytes": blocks * geometry.block_bytes}


def chunk_of_parts(geometries: Sequence[KvGeometry], num_blocks: int) -> dict[str, int]:
    """The same for several workers, each of which has its part of every block."""
    least = min(geometries, key=lambda geometry: geometry.block_bytes or _CHUNK_BYTES)
    chunk = chunk_of(least, num_blocks)
    return {**chunk, "chunk_bytes": chunk["chunk_blocks"] * sum(geometry.block_bytes for geometry in geometries)}


def growth_text(
    config: EngineConfig,
    limits: WorkerLimits,
    geometry: KvGeometry,
    memory_available: int,
    devices: Sequence[str] = (CPU,),
) -> str:
    """Return what KV memory may grow to, why so much, and what becomes of it when nobody uses it, or why it does not
    grow; for whoever starts the engine. `memory_available`: beside weights and buffers; 0: not known.
    """
    kv, nbytes = config.kv, limits.num_blocks * geometry.block_bytes
    if kv.kv_cache_memory is not None:
        why = "the limit of --kv-cache-memory"
    elif not memory_available:
        why = "what its workers have room for"
    elif limits.num_blocks == config.scheduler.max_num_seqs * -(-limits.max_model_len // limits.block_size):
        why = (
            f"all that --max-num-seqs {format_count(config.scheduler.max_num_seqs, 'sequence')} of full length can fill"
        )
    else:
        why = (
            f"{kv.kv_cache_fraction:.0%} (--kv-cache-fraction) of the {format_bytes(memory_available)} available "
            "beside weights and buffers; "
            "the rest is left to others"
        )
    if whole := taken_whole_because(config, devices):
        return f"KV memory of {format_bytes(nbytes)} is taken at the start, as {whole}; its size is {why}"
    back = "it is kept, as --kv-cache-release is 0"
    if kv.kv_cache_release:
        floor = format_bytes(floor_bytes(nbytes))
        back = (
            f"unused for {kv.kv_cache_release:g} s (--kv-cache-release) it goes back, but for {floor} of the "
            "prefix cache"
        )
    return f"KV memory may grow to {format_bytes(nbytes)}, {why}; {back}"


def kv_bytes(config: EngineConfig, memory_available: int) -> int:
    """Bytes that may become KV memory."""
    if config.kv.kv_cache_memory is not None:
        return config.kv.kv_cache_memory
    return int(memory_available * config.kv.kv_cache_fraction)


def sampled_rows(config: EngineConfig, spec: ModelSpec) -> int:
    """Rows of logits a step may want: one for each sequence, and for scoring prompts up to 256 within 256 MiB of
    logits. Where vectors are made, any row of a step may count.
    """
    if spec.pooling is not None:
        return config.scheduler.max_num_batched_tokens
    affordable = min(_MANY_ROWS, _LOGITS_BYTES // (4 * spec.vocab_size), config.scheduler.max_num_batched_tokens)
    return max(config.scheduler.max_num_seqs, affordable)


def step_bytes(config: EngineConfig, spec: ModelSpec) -> int:
    """About what the buffers of a step take: activations of its tokens in float32, and the logits."""
    heads = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    inner = 3 * spec.intermediate_size
    if (moe := spec.moe) is not None:
        # Beside an MLP's, for each of a token's experts its own copy of the row, the gated values, and both encoded: at
        # most as long again.
        inner = max(inner, 3 * moe.shared_intermediate_size)
        inner += (
            moe.num_experts + moe.identities + 2 * moe.experts_per_token * (spec.hidden_size + moe.intermediate_size)
        )
    columns = 4 * spec.handed_columns + heads + inner
    if spec.layer_states:  # what enters a convolution and comes out of it, a gate, and the outputs
        columns += 4 * max(state.channels for state in spec.layer_states if state is not None)
    if (indexer := spec.indexer) is not None:
        columns += indexer.chosen + (indexer.heads + 1) * (indexer.width + 1)
    return 4 * (
        config.scheduler.max_num_batched_tokens * columns
        + sampled_rows(config, spec) * (spec.vocab_size if spec.pooling is None else spec.hidden_size)
    )


def choose_cpus(threads: int | None, host: Host) -> tuple[int, ...]:
    """The CPUs of the compute threads, one for each, out of the host's allowance.

    Without a wish: one for each physical core, less one where there are more than two (the scheduler, HTTP and the rest
    of the machine live there), within the CPU quota. With one: physical cores first, then their siblings. The fastest
    cores compute, and low-power cores only where the wish exceeds all others (`core_order`). UserError for more threads
    than CPUs.
    """
    allowance = host.allowance
    cores = {0: sorted((core for own in allowed_cores(host).values() for core in own), key=lambda core: core.cpus)}
    if threads is None:
        count = len(cores[0])
        regular = without_low_power(fastest_cores(cores, count - spare_cores(count)))
        return fastest_cpus(regular, min(len(regular[0]), allowance.usable_threads))[0]
    if threads > len(allowance.cpus):
        raise UserError(
            f"--threads {threads}: this process may use {format_count(len(allowance.cpus), 'CPU')}; give "
            f"{len(allowance.cpus)} or less",
            param="threads",
        )
    return fastest_cpus(cores, threads)[0]


def _kv_problem(
    config: EngineConfig, geometry: KvGeometry, max_model_len: int, memory_available: int
) -> CapacityError | None:
    """Return why not even one sequence of full length fits the KV memory, if so."""
    if config.kv.kv_cache_memory is not None and config.kv.kv_cache_memory > memory_available:
        return CapacityError(
            f"--kv-cache-memory {format_bytes(config.kv.kv_cache_memory)} is more than the "
            f"{format_bytes(memory_available)} that are "
            f"available beside the weights and the buffers of a step; lower it",
            param="kv_cache_memory",
        )
    needed = -(-max_model_len // geometry.block_size)
    sequence = needed * geometry.block_bytes
    if problem := state_memory_problem(config, geometry, kv_bytes(config, memory_available), sequence):
        return problem
    fitting = num_blocks(config, geometry, max_model_len, memory_available)
    if fitting >= needed:
        return None
    held = fitting * geometry.block_size
    whole = kv_bytes(config, memory_available)
    states = state_bytes(geometry, state_slots(config, geometry, whole))
    held_bytes, enough = whole - states, least_kv_memory(config, geometry, sequence)
    beside = f" (beside {format_bytes(states)} of states)" if states else ""
    advice = f"set --max-model-len to {held} or less, or " if held else ""
    return CapacityError(
        f"one sequence of --max-model-len {max_model_len} needs {format_count(needed, 'KV block')} of "
        f"{format_count(geometry.block_size, 'token')} "
        f"({format_bytes(sequence)}), but {format_bytes(held_bytes)} of KV memory{beside} hold {fitting}; "
        f"{advice}give --kv-cache-memory at least {format_bytes(enough)}",
        param="kv_cache_memory" if config.kv.kv_cache_memory is not None else "max_model_len",
    )


def with_kv_memory_variable(config: EngineConfig, host: Host) -> EngineConfig:
    """The config with the size of KV memory that a variable gives, where the settings give none. UserError for a
    variable that says no such thing.
    """
    return replace(
        config, kv=replace(config.kv, kv_cache_memory=kv_cache_memory(config.kv.kv_cache_memory, host.variables))
    )


def weights_problem(
    config: EngineConfig, spec: ModelSpec, mine: Kept, available: int, *, several: bool
) -> CapacityError:
    """Return an error that the weights of an engine or a worker take more than the bytes that are `available`, and what
    would help. `several`: it is one of several engines.
    """
    advice = ["keep them smaller (--quantize)"]
    if several:
        advice.append("have fewer engines")
        if spec.moe is not None and not config.parallel.enable_expert_parallel:
            advice.append("keep the experts once for all engines (--enable-expert-parallel)")
    besides = f" beside {format_bytes(mine.common)} of experts that other engines keep" if mine.common else ""
    return CapacityError(
        f"the weights take {format_bytes(mine.own)}{besides}, and {format_bytes(available)} are available; "
        f"{', or '.join(advice)}",
        param="model",
    )
