"""Our side: `homenode bench model`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.contender import Command, Measured, Side
from benchmarks.workload import Workload, batch_case


def own_side(model: Path, workload: Workload) -> Side:
    """homenode on the GGUF file `model`."""
    batches = ",".join(map(str, workload.batches or (1,)))
    steps = workload.steps if workload.batches else 0
    argv = (
        *(sys.executable, "-m", "homenode.cli.main", "bench", "model", str(model)),
        *("--prompt-tokens", str(workload.prompt), "--gen-tokens", str(steps), "--context", str(workload.context)),
        *("--batch", batches, "--threads", str(workload.threads), "--repeat", "1", "--json"),
    )
    return Side("homenode", "", (Command(argv),), read)


def read(outputs: Sequence[str]) -> Measured:
    """From the JSON object of `homenode bench model --json`."""
    found = json.loads(outputs[0])
    rates = {"prefill" if r["test"] == "prefill" else batch_case(r["batch"]): float(r["tok_s"]) for r in found["results"]}
    readings = [result["placement"][when] for result in found["results"] for when in ("before", "after")]
    return Measured(rates, str(found["backend"]["level"]), tuple(readings))
