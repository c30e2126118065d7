"""What the programs next to it share: they load a model once and then measure what they are asked (see
`benchmarks.standing`)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

# What is asked: tokens of a `prompt` (0: none), `batches`, and of these `context` and `steps`. What is answered: tokens
# a second, `prefill` and by batch.
Question = dict[str, Any]
Answer = tuple[float, dict[int, float]]


def answer_all(version: str, measure: Callable[[Question], Answer]) -> None:
    """Until standard input ends. What is asked for the first time is measured twice, as the first time warms up."""
    print(json.dumps({"version": version}), flush=True)
    known: set[str] = set()
    for line in sys.stdin:
        question = json.loads(line)
        if line not in known:
            measure(question)
            known.add(line)
        prefill, batches = measure(question)
        print(json.dumps({"version": version, "prefill": prefill, "batches": batches}), flush=True)
