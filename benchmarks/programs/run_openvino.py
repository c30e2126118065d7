"""Run by the Python of a virtual environment with openvino-genai: `run_openvino.py TASK`, TASK a JSON object as
`in_python.py` makes it, with `model`, `precision` and `threads`; see `answering.py`.

The prompt and a single sequence go through the stateful pipeline, batches through continuous batching, each with the
engine's own defaults for everything but the number of threads.
"""

from __future__ import annotations

import json
import random
import sys
import time
from functools import cache
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai
from answering import Answer, Question, answer_all

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


def alone(pipe: Any, question: Question) -> tuple[float, float]:
    """Tokens a second of a prompt and of decoding one sequence; 0 for what is not wanted."""
    prefill = single = 0.0
    if question["prompt"]:
        given = prompt(question["prompt"])
        start = time.perf_counter()
        pipe.generate(given, exactly(1))
        prefill = question["prompt"] / (time.perf_counter() - start)
    if 1 in question["batches"]:
        result = pipe.generate(prompt(question["context"]), exactly(question["steps"] + 1))
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


def main() -> None:
    """Load what is needed, when it is needed, and answer."""
    task = json.loads(sys.argv[1])
    options = {"INFERENCE_NUM_THREADS": task["threads"]}

    @cache
    def stateful() -> Any:
        return genai.LLMPipeline(task["model"], "CPU", ATTENTION_BACKEND="SDPA", **options)

    @cache
    def continuous() -> Any:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 1  # GiB
        scheduler.max_num_batched_tokens = 512
        scheduler.enable_prefix_caching = False
        return genai.ContinuousBatchingPipeline(task["model"], scheduler, "CPU", options)

    def measure(question: Question) -> Answer:
        prefill, rates = 0.0, dict[int, float]()
        if question["prompt"] or 1 in question["batches"]:
            prefill, single = alone(stateful(), question)
            rates |= {1: single} if 1 in question["batches"] else {}
        several = [batch for batch in question["batches"] if batch > 1]
        return prefill, rates | {
            batch: together(continuous(), batch, question["context"], question["steps"]) for batch in several
        }

    answer_all(genai.__version__, measure)


if __name__ == "__main__":
    main()
