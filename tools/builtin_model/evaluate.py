"""Asks the model questions in wordings it never saw in training, answers greedily, and counts what is right for each
kind.

python -m tools.builtin_model.evaluate src/homenode/builtin --per-kind 10 --show-wrong
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from .corpus.conversation import Source
from .corpus.phrasing import Exchange
from .tokens import Encoder, load_tokenizer

_MOST_TOKENS = 160


@dataclass(frozen=True)
class Result:
    """One question put to the model."""

    asked: Exchange
    answer: str

    @property
    def right(self) -> bool:
        return re.search(self.asked.accept, self.answer, re.IGNORECASE) is not None


def answers(model: LlamaForCausalLM, encoder: Encoder, prompts: list[list[int]], most: int = _MOST_TOKENS) -> list[str]:
    """The greedy answers; prompts of the same length run as one batch, so no padding is needed."""
    found: dict[int, str] = {}
    generate: Callable[..., torch.Tensor] = getattr(model, "generate")  # noqa: B009 - its own types refuse every model
    lengths = defaultdict(list)
    for at, prompt in enumerate(prompts):
        lengths[len(prompt)].append(at)
    for places in lengths.values():
        ids = torch.tensor([prompts[at] for at in places])
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            made = generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=most, do_sample=False)[
                :, ids.shape[1] :
            ]
        for at, row in zip(places, made.tolist(), strict=True):
            found[at] = encoder.decode(row[: row.index(encoder.end)] if encoder.end in row else row)
    return [found[at] for at in range(len(prompts))]


def evaluate(model: LlamaForCausalLM, encoder: Encoder, per_kind: int, seed: int = 977) -> list[Result]:
    """`per_kind` held-out questions from every maker."""
    model.train(False)
    asked = Source(seed, held=True).each_kind(per_kind)
    replies = answers(model, encoder, [encoder.prompt(exchange.question) for exchange in asked])
    model.train(True)
    return [Result(exchange, reply) for exchange, reply in zip(asked, replies, strict=True)]


def summary(results: list[Result], worst: int) -> str:
    """The share that is right, and the kinds with the lowest shares."""
    kinds: dict[str, list[bool]] = defaultdict(list)
    for result in results:
        kinds[result.asked.kind].append(result.right)
    shares = sorted((sum(right) / len(right), kind, len(right)) for kind, right in kinds.items())
    right = sum(result.right for result in results)
    lines = [f"held-out wordings: {right} of {len(results)} right ({100 * right / len(results):.1f} %)"]
    lines += [f"  {kind}: {share:.0%} of {count}" for share, kind, count in shares[:worst] if share < 1]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="an exported model")
    parser.add_argument("--per-kind", type=int, default=10)
    parser.add_argument("--seed", type=int, default=977)
    parser.add_argument("--show-wrong", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(2)
    model = LlamaForCausalLM.from_pretrained(chosen.folder, dtype=torch.float32)
    results = evaluate(model, Encoder(load_tokenizer(chosen.folder / "tokenizer.json")), chosen.per_kind, chosen.seed)
    print(summary(results, worst=200))
    for result in results:
        if chosen.show_wrong and not result.right:
            print(f"[{result.asked.kind}] {result.asked.question!r} -> {result.answer!r}")


if __name__ == "__main__":
    main()
