"""Run by the Python of a virtual environment with openvino-genai: `run_openvino.py TASK`, TASK a JSON object as `in_python.py` makes it.

The prompt and a single sequence go through the stateful pipeline, batches through continuous batching, each with the engine's own defaults
for everything but the number of threads. Prints one JSON line.
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

_random = random.Random(1)


def prompt(tokens: int) -> Any:
    """Token ids nothing else has begun with, so that no prefix is known."""
    return ov.Tensor(np.array([[_random.randrange(1000, 100_000) for _ in range(tokens)]], dtype=np.int64))


def exactly(tokens: int) -> Any:
    """Greedy decoding of so many tokens."""
    config = genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = tokens
    config.ignore_eos = True
    config.do_sample = False
    return config


def alone(task: dict[str, Any], options: dict[str, Any]) -> tuple[float, float]:
    """Tokens a second of a prompt and of decoding one sequence; 0 for what is not wanted."""
    pipe = genai.LLMPipeline(task["model"], "CPU", ATTENTION_BACKEND="SDPA", **options)
    pipe.generate(prompt(task["prompt"] or task["context"]), exactly(2))
    prefill = single = 0.0
    if task["prompt"]:
        given = prompt(task["prompt"])
        start = time.perf_counter()
        pipe.generate(given, exactly(1))
        prefill = task["prompt"] / (time.perf_counter() - start)
    if 1 in task["batches"]:
        result = pipe.generate(prompt(task["context"]), exactly(task["steps"] + 1))
        single = 1000.0 / result.perf_metrics.get_tpot().mean
    return prefill, single


def together(pipe: Any, batch: int, context: int, steps: int) -> float:
    """Tokens a second of decoding `batch` sequences: as many steps, counted from when each has its first token."""
    handles = [pipe.add_request(i, prompt(context), exactly(steps + 1)) for i in range(batch)]
    made = 0
    while made < batch:
        pipe.step()
        made += drained(handles)
    start, first = time.perf_counter(), made
    while pipe.has_non_finished_requests():
        pipe.step()
    seconds = time.perf_counter() - start
    made += drained(handles)
    if made != batch * (steps + 1):
        raise SystemExit(f"{batch} sequences gave {made} tokens instead of {batch * (steps + 1)}")
    return (made - first) / seconds


def drained(handles: list[Any]) -> int:
    """How many tokens have come since it was last asked."""
    count = 0
    for handle in handles:
        while handle.can_read():
            count += sum(len(output.generated_ids) for output in handle.read().values())
    return count


def batched(task: dict[str, Any], options: dict[str, Any]) -> dict[int, float]:
    """Tokens a second of every batch of more than one sequence."""
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 1  # GiB
    scheduler.max_num_batched_tokens = 512
    scheduler.enable_prefix_caching = False
    pipe = genai.ContinuousBatchingPipeline(task["model"], scheduler, "CPU", options)
    together(pipe, 2, task["context"], 2)
    return {batch: together(pipe, batch, task["context"], task["steps"]) for batch in task["batches"] if batch > 1}


def main() -> None:
    """Measure and print."""
    task = json.loads(sys.argv[1])
    options = {"INFERENCE_NUM_THREADS": task["threads"]}
    prefill, rates = 0.0, dict[int, float]()
    if task["prompt"] or 1 in task["batches"]:
        prefill, single = alone(task, options)
        rates |= {1: single} if 1 in task["batches"] else {}
    if any(batch > 1 for batch in task["batches"]):
        rates |= batched(task, options)
    print(json.dumps({"version": genai.__version__, "prefill": prefill, "batches": rates}))


if __name__ == "__main__":
    main()
