"""Run by the Python of a virtual environment with ctranslate2: `run_ctranslate2.py TASK`, TASK a JSON object as
`in_python.py` makes it, with `model`, `precision` and `threads`; see `answering.py`.

It gives no time for each step: decoding is the difference between two calls, one of which draws a single token.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import ctranslate2
from answering import Answer, Question, answer_all

_random = random.Random(1)


def seconds(generator: Any, words: list[str], batch: int, context: int, tokens: int) -> float:
    """How long it takes to compute `batch` prompts and draw so many tokens for each."""
    prompts = [[words[_random.randrange(1000, 100_000)] for _ in range(context)] for _ in range(batch)]
    start = time.perf_counter()
    generator.generate_batch(
        prompts,
        max_length=tokens,
        min_length=tokens,
        sampling_topk=1,
        include_prompt_in_result=False,
        end_token=[len(words) - 1],
    )
    return time.perf_counter() - start


def main() -> None:
    """Load and answer."""
    task = json.loads(sys.argv[1])
    words = json.loads((Path(task["model"]) / "vocabulary.json").read_text(encoding="utf-8"))
    generator = ctranslate2.Generator(
        task["model"], device="cpu", compute_type=task["precision"], inter_threads=1, intra_threads=task["threads"]
    )

    def measure(question: Question) -> Answer:
        prompt, context, steps = question["prompt"], question["context"], question["steps"]
        prefill = prompt / seconds(generator, words, 1, prompt, 1) if prompt else 0.0
        rates = {}
        for batch in question["batches"]:
            once = seconds(generator, words, batch, context, 1)
            rates[batch] = batch * steps / (seconds(generator, words, batch, context, 1 + steps) - once)
        return prefill, rates

    answer_all(ctranslate2.__version__, measure)


if __name__ == "__main__":
    main()
