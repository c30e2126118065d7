"""What the built-in model has to say, and an engine in this process that says it."""

from __future__ import annotations

import contextlib
import ctypes
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from homenode import LLM, SamplingParams

GOLDEN: list[dict[str, Any]] = json.loads(Path(__file__).with_name("golden_builtin.json").read_text(encoding="utf-8"))
_THP_DISABLE = 41  # prctl(2)


@contextlib.contextmanager
def small_pages() -> Iterator[None]:
    """No huge pages for this process and those it starts."""
    libc = ctypes.CDLL(None)
    libc.prctl(_THP_DISABLE, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_THP_DISABLE, 0, 0, 0, 0)


def said(llm: LLM, count: int, prompts: int = 3) -> list[list[int]]:
    """The first tokens that the model says to the first prompts, all in one batch."""
    answers = llm.generate(
        [case["prompt_ids"] for case in GOLDEN[:prompts]], SamplingParams(max_tokens=count, temperature=0)
    )
    return [list(answer.token_ids) for answer in answers]


def golden(count: int, kept: str = "q8_0_ids", prompts: int = 3) -> list[list[int]]:
    """What it has to say. Emulated processors take five times as long for it in BF16 (`token_ids`) as in Q8_0."""
    return [case[kept][:count] for case in GOLDEN[:prompts]]
