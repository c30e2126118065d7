"""What transformers makes of the real models that `make real-models` fetches, their weights decoded to float32: the
perplexity over benchmarks/perplexity.txt, and greedy texts. Needs accelerate beside transformers:

    python -m tests.model.real_models      # writes tests/model/real_models.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.perplexity import TEXT, by_transformers, models, perplexity, windows
from homenode.model.tokenizer import load_tokenizer

GOLDEN = Path(__file__).with_suffix(".json")
PROMPTS = (
    "The capital of France is",
    "Once upon a time, there was a little",
    "One, two, three, four, five,",
    "def add(a, b):\n    return",
)
NEW = 12


def greedy(file: Path) -> list[dict[str, Any]]:
    """Of each prompt its tokens, and NEW likeliest ones with how far each leads the next best, in log-probability."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, attn_implementation="eager"
    )
    tokenizer, found = load_tokenizer(file), []
    for prompt in PROMPTS:
        tokens, new, leads = tokenizer.encode(prompt), list[int](), list[float]()
        for _ in range(NEW):
            with torch.no_grad():
                best = torch.topk(model(torch.tensor([tokens + new])).logits[0, -1], 2)
            new.append(int(best.indices[0]))
            leads.append(round(float(best.values[0] - best.values[1]), 3))
        found.append({"prompt": tokens, "new": new, "leads": leads})
    return found


def main() -> None:
    """Write the file."""
    found = {}
    for name, file in models().items():
        cut = windows(file, TEXT.read_text(encoding="utf-8"))
        found[name] = {
            "perplexity": round(perplexity(by_transformers(file, cut)), 4),
            "texts": greedy(file),
        }
    GOLDEN.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
