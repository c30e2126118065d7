"""homenode as the comparison asks it: `run_homenode.py TASK`, TASK a JSON object with `model`, a GGUF file, and
`threads`; see `answering.py`.

The same runs as those of `homenode bench model`, with its default settings.
"""

from __future__ import annotations

import json
import sys

from answering import Answer, Question, answer_all

from homenode.bench.compute.model import ModelBenchPlan, timed_runs
from homenode.cli.benchmarks.options import engine_backend
from homenode.engine.config import EngineConfig
from homenode.engine.memory.numa import matrix_policy_of
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.hub.locate import locate
from homenode.model.weights.load import load_model


def main() -> None:
    """Load and answer."""
    task = json.loads(sys.argv[1])
    checkpoint = open_checkpoint(locate(task["model"]))
    backend, place, _ = engine_backend(EngineConfig.of(task["model"], {"threads": task["threads"]}), checkpoint)
    model = load_model(checkpoint, backend, matrix_policy_of=matrix_policy_of(place))

    def measure(question: Question) -> Answer:
        plan = ModelBenchPlan(
            question["prompt"], question["steps"], tuple(question["batches"]) or (1,), question["context"]
        )
        runs = timed_runs(model, backend, plan)
        prefill = question["prompt"] / runs.prefill()() if question["prompt"] else 0.0
        return prefill, {batch: batch * question["steps"] / runs.decode(batch)() for batch in question["batches"]}

    answer_all(str(backend.statistics()["level"]), measure)


if __name__ == "__main__":
    main()
