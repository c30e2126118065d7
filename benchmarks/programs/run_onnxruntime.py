"""Run by the Python of a virtual environment with onnxruntime-genai: `run_onnxruntime.py TASK`, TASK a JSON object as
`in_python.py` makes it, with `model`, `precision` and `threads`; see `answering.py`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as genai
from answering import Answer, Question, answer_all

_random = np.random.default_rng(1)


def with_threads(folder: str, threads: int) -> Any:
    """The model, loaded to compute with so many threads."""
    path = Path(folder) / "genai_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["model"]["decoder"].setdefault("session_options", {})["intra_op_num_threads"] = threads
    path.write_text(json.dumps(config, indent=1), encoding="utf-8")
    return genai.Model(folder)


def begin(model: Any, batch: int, context: int, steps: int) -> tuple[Any, float]:
    """A generator whose prompts are computed, and the seconds that took, with the draw of the first token."""
    parameters = genai.GeneratorParams(model)
    length = context + steps + 1
    parameters.set_search_options(do_sample=False, max_length=length, min_length=length, batch_size=batch)
    generator = genai.Generator(model, parameters)
    ids = _random.integers(1000, 100_000, (batch, context)).astype(np.int32)
    start = time.perf_counter()
    generator.append_tokens(ids)
    generator.generate_next_token()
    return generator, time.perf_counter() - start


def decode(model: Any, batch: int, context: int, steps: int) -> float:
    """Tokens a second of all sequences."""
    generator, _ = begin(model, batch, context, steps)
    start = time.perf_counter()
    for _ in range(steps):
        generator.generate_next_token()
    return batch * steps / (time.perf_counter() - start)


def main() -> None:
    """Load and answer."""
    task = json.loads(sys.argv[1])
    model = with_threads(task["model"], task["threads"])

    def measure(question: Question) -> Answer:
        prefill = question["prompt"] / begin(model, 1, question["prompt"], 1)[1] if question["prompt"] else 0.0
        return prefill, {
            batch: decode(model, batch, question["context"], question["steps"]) for batch in question["batches"]
        }

    answer_all(genai.__version__, measure)


if __name__ == "__main__":
    main()
