"""The built-in model, judged by prompts written apart from the generator of its training text."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from homenode import LLM, SamplingParams

PROMPTS = json.loads(Path(__file__).with_name("builtin_prompts.json").read_text(encoding="utf-8"))
FOLDER = Path(__file__).resolve().parents[2] / "src/homenode/builtin"
LARGEST = 12_000_000


def faults(case: dict[str, Any], answer: str, finish_reason: str | None) -> list[str]:
    """What is wrong with an answer; empty when it is right."""
    found = [f"lacks {p}" for p in case.get("all", ()) if not re.search(p, answer, re.I | re.S)]
    found += [f"has {p}" for p in case.get("none", ()) if re.search(p, answer, re.I | re.S)]
    sentences = [s.strip() for s in re.split(r"(?<=[.!?])\s+", answer) if s.strip()]
    if len(sentences) < case.get("min_sentences", 1):
        found.append(f"only {len(sentences)} sentences")
    if len(answer.split()) < case.get("min_words", 1):
        found.append("too short")
    if len(sentences) > 3 and len(set(sentences)) < 0.8 * len(sentences):
        found.append("repeats itself")
    if finish_reason != "stop":
        found.append(f"did not end ({finish_reason})")
    return found


@pytest.mark.parametrize(
    ("answer", "finish_reason", "right"),
    [
        ("The cat sat. It saw a dog. They ran.", "stop", True),
        ("The cat sat. It saw a dog. They ran.", "length", False),
        ("A dog barked. It ran. It slept.", "stop", False),
        ("The cat sat.", "stop", False),
        ("The cat sat. The cat sat. The cat sat. The cat sat.", "stop", False),
    ],
)
def test_the_judge_can_say_no(answer: str, finish_reason: str, right: bool) -> None:
    assert (not faults({"all": ["\\bcat\\b"], "min_sentences": 3}, answer, finish_reason)) == right


def test_ninety_of_a_hundred_answers_are_right() -> None:
    assert len(PROMPTS) == 100
    with LLM() as llm:
        texts = [llm.tokenizer.render_chat([{"role": "user", "content": case["prompt"]}]) for case in PROMPTS]
        prompts = [llm.tokenizer.encode(text, add_special_tokens=False) for text in texts]
        answers = llm.generate(prompts, SamplingParams(max_tokens=200, temperature=0))
    right, wrong = 0, []
    kinds: dict[str, list[bool]] = defaultdict(list)
    for case, answer in zip(PROMPTS, answers, strict=True):
        found = faults(case, answer.text, answer.finish_reason)
        kinds[case["kind"]].append(not found)
        right += not found
        if found:
            wrong.append(f"{case['prompt']!r} -> {answer.text!r}: {', '.join(found)}")
    print(
        f"\n{right} of {len(PROMPTS)} right; " + ", ".join(f"{k} {sum(v)}/{len(v)}" for k, v in sorted(kinds.items()))
    )
    print("\n".join(wrong))
    assert right >= 90


def test_the_files_stay_small() -> None:
    assert sum(f.stat().st_size for f in FOLDER.rglob("*") if f.is_file()) <= LARGEST


def test_plain_text_goes_on_as_a_story() -> None:
    with LLM() as llm:
        text = llm.generate("Once upon a time", SamplingParams(max_tokens=60, temperature=0))[0].text
    words = re.findall(r"[a-z']+", text.lower())
    assert len(words) >= 25
    assert len(set(words)) >= 12, text
