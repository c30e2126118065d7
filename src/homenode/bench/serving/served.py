"""Figures that clients saw of a server, in the field's numbers: throughput, time to the first token, time between
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from homenode.bench.serving.clients import TimedCompletion


@dataclass(frozen=True)
class Served:
    """Seconds and tokens per second. `itl` is over all gaps between the events of all completions, each of which has a
    token, or several where some were drafted; `tpot` is over completions, and of tokens in any case.
    """

    clients: int
    requests: int
    seconds: float
    prompt_tokens: int
    tokens: int
    output_tok_s: float  # from the first request's beginning to the last one's end
    total_tok_s: float  # prompts counted as well
    ttft_median_s: float
    ttft_p95_s: float
    itl_median_s: float
    itl_p95_s: float
    itl_max_s: float
    tpot_median_s: float  # first token to last, divided by the tokens after the first


def served(clients: int, prompt_tokens: int, exchanges: Sequence[TimedCompletion]) -> Served:
    """The figures of a load whose prompts had `prompt_tokens` tokens each. ValueError when a completion has no
    token."""
    if not exchanges or not all(e.events for e in exchanges):
        raise ValueError("a completion without a token: nothing to measure")
    seconds = max(e.ended_at for e in exchanges) - min(e.started_at for e in exchanges)
    tokens, prompts = sum(e.tokens for e in exchanges), prompt_tokens * len(exchanges)
    first = np.array([e.events[0] - e.started_at for e in exchanges])
    gaps = np.concatenate([np.diff(e.events) for e in exchanges])
    each = np.array([e.token_seconds for e in exchanges if e.tokens > 1])
    return Served(
        clients=clients,
        requests=len(exchanges),
        seconds=seconds,
        prompt_tokens=prompts,
        tokens=tokens,
        output_tok_s=tokens / seconds,
        total_tok_s=(tokens + prompts) / seconds,
        ttft_median_s=_share(first, 50),
        ttft_p95_s=_share(first, 95),
        itl_median_s=_share(gaps, 50),
        itl_p95_s=_share(gaps, 95),
        itl_max_s=_share(gaps, 100),
        tpot_median_s=_share(each, 50),
    )


def _share(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]], percent: float) -> float:
    """NaN where there are none: one token has no gaps."""
    return float(np.percentile(values, percent)) if len(values) else float("nan")
