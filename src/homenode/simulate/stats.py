"""An outcome in figures: throughput and percentiles. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from homenode.simulate.run import Outcome

_SHARES = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class OutcomeStats:
    """Times in seconds, at p50, p90 and p99; None where nothing was measured."""

    requests: int
    finished: int
    refused: int
    seconds: float
    output_tok_s: float
    total_tok_s: float
    ttft: tuple[float | None, ...]
    itl: tuple[float | None, ...]
    latency: tuple[float | None, ...]
    mean_latency: float
    reasons: dict[str, int]

    @classmethod
    def of(cls, outcome: Outcome) -> OutcomeStats:
        """Return the figures of an outcome."""
        span = outcome.end or math.inf
        latency = outcome.latency
        return cls(
            outcome.requests,
            outcome.finished,
            outcome.refused,
            outcome.end,
            outcome.output_tokens / span,
            (outcome.output_tokens + outcome.prompt_tokens) / span,
            percentiles(outcome.ttft),
            percentiles(outcome.itl),
            percentiles(latency),
            sum(latency) / len(latency) if latency else 0.0,
            dict(outcome.reasons),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the figures with the percentiles by name, in seconds."""
        names = ("p50", "p90", "p99")
        return {
            "requests": self.requests,
            "finished": self.finished,
            "refused": self.refused,
            "refusals": self.reasons,
            "seconds": self.seconds,
            "output_tok_s": self.output_tok_s,
            "total_tok_s": self.total_tok_s,
            "ttft_s": dict(zip(names, self.ttft, strict=True)),
            "itl_s": dict(zip(names, self.itl, strict=True)),
            "latency_s": {**dict(zip(names, self.latency, strict=True)), "mean": self.mean_latency},
        }


def percentiles(values: Sequence[float]) -> tuple[float | None, ...]:
    """p50, p90 and p99: the least value that so many are not above."""
    ordered = sorted(values)
    return tuple(ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None for share in _SHARES)
