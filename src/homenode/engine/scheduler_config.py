"""Settings of the scheduler and the KV memory."""

from __future__ import annotations

from dataclasses import dataclass

from homenode.errors import UserError
from homenode.kv_types import KV_CHOICES
from homenode.options import option
from homenode.units import parse_bytes, parse_seconds, parse_tokens

USUAL_SEQUENCES = 128


@dataclass(frozen=True)
class SchedulerConfig:
    """Settings of how steps are filled and who is let in."""

    max_num_batched_tokens: int = option(
        512,
        "Most tokens computed in one step: the running sequences' next tokens and prefill.",
        parse=parse_tokens,
        minimum=1,
    )
    max_num_seqs: int = option(
        0, "Most sequences running at once. 0: 128, or as many as a step has tokens if that is less.", minimum=0
    )
    enable_chunked_prefill: bool = option(
        True,
        "Cut a prompt that does not fit the rest of a step's tokens. Off: a prompt is computed whole or waits; one "
        "over the budget is refused.",
    )
    step_time: float = option(
        150.0,
        "Milliseconds that a step takes at most while somebody's answer goes on, or twice what its decodes take alone "
        "if that is more; steps of prompts alone take twice as long. 0: only --max-num-batched-tokens bounds a step.",
        minimum=0,
        metavar="MS",
    )
    max_num_queued_requests: int = option(
        1024, "Requests that may wait; further ones get 503 with Retry-After. 0: no limit.", minimum=0
    )
    max_num_queued_tokens: int = option(
        0,
        "Prompt tokens that may wait; further requests get 503 with Retry-After. 0: no limit.",
        parse=parse_tokens,
        minimum=0,
    )
    max_preemptions: int = option(
        8,
        "A request preempted this often is not chosen again while another can be; if none can, it keeps its place "
        "and others wait.",
        minimum=0,
    )
    request_timeout: float = option(
        0.0, "Server-side deadline of a request, such as 5min. 0: none.", parse=parse_seconds, minimum=0
    )

    def __post_init__(self) -> None:
        if not self.max_num_seqs:
            object.__setattr__(self, "max_num_seqs", min(USUAL_SEQUENCES, self.max_num_batched_tokens))


@dataclass(frozen=True)
class KvConfig:
    """The paged KV memory and the prefix cache."""

    kv_cache_memory: int | None = option(
        None,
        "Bytes of KV memory of one worker, such as 2GiB. Default: --kv-cache-fraction.",
        parse=parse_bytes,
        minimum=1,
    )
    kv_cache_fraction: float = option(
        0.5,
        "Share of the memory this process may still use, after loading, that becomes KV memory.",
        minimum=0.0,
        maximum=0.95,
    )
    kv_cache_release: float = option(
        60.0,
        "Time after which KV memory that is not used goes back to the machine, such as 3s; what only the prefix "
        "cache holds goes back after twice that. "
        "0: never.",
        parse=parse_seconds,
        minimum=0,
    )
    kv_cache_prealloc: bool = option(False, "Take all KV memory at the start instead of when it is used, and keep it.")
    block_size: int = option(
        64, "Tokens in a KV block; a multiple of 32.", parse=parse_tokens, minimum=32, maximum=4096
    )
    kv_cache_dtype: str = option(
        "auto",
        "Storage of keys and values; auto is f32 for float32 models and bf16 for all others. int8 keeps a scale for "
        "each token and head.",
        choices=KV_CHOICES,
    )
    enable_prefix_caching: bool = option(True, "Reuse the KV blocks of equal prompt beginnings.")
    state_snapshot_interval: int = option(
        0,
        "Of models whose layers keep a state beside keys and values: tokens of a prompt after which the prefix "
        "cache keeps "
        "a snapshot of it, rounded up to whole blocks; 1: after every block. 0: as many tokens as take as much KV "
        "memory as "
        "a state.",
        parse=parse_tokens,
        minimum=0,
    )


def check_config(config: SchedulerConfig, kv: KvConfig, max_model_len: int) -> list[UserError]:
    """Settings that do not go together, each as an error that names the flags and the numbers; an empty list if all is
    well.
    """
    problems = []
    if config.max_num_seqs > config.max_num_batched_tokens:
        problems.append(
            UserError(
                f"--max-num-seqs {config.max_num_seqs} is more than --max-num-batched-tokens "
                f"{config.max_num_batched_tokens}: a step holds one "
                f"token of every running sequence. Lower --max-num-seqs or raise --max-num-batched-tokens.",
                param="max_num_seqs",
            )
        )
    if not config.enable_chunked_prefill and config.max_num_batched_tokens < max_model_len:
        problems.append(
            UserError(
                f"--max-num-batched-tokens {config.max_num_batched_tokens} is less than --max-model-len "
                f"{max_model_len}: with "
                "--no-enable-chunked-prefill a prompt is computed in one step. Raise --max-num-batched-tokens to "
                f"{max_model_len}, lower "
                f"--max-model-len or enable chunked prefill.",
                param="max_num_batched_tokens",
            )
        )
    if kv.block_size % 32:
        problems.append(
            UserError(f"--block-size {kv.block_size} is not a multiple of 32; take 32, 64 or 128", param="block_size")
        )
    return problems
