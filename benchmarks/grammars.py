"""What structured output costs: decode throughput of a batch bound by a JSON schema, against the same batch unbound, in
turns.

    python -m benchmarks.grammars MODEL [--batch 8] [--tokens 128] [--rounds 5] [--threads N]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

from homenode import LLM, SamplingParams
from homenode.bench.runner import Interval, in_turns, record
from homenode.grammars.spec import GrammarSpec, JsonSchema

# A list that goes on beyond every answer: both batches have as many tokens.
SCHEMA: dict[str, Any] = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "kind": {"enum": ["person", "place", "thing"]},
            "born": {"type": "integer", "minimum": 1000, "maximum": 2100},
            "address": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
                "required": ["city", "zip"],
            },
            "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
        },
        "required": ["name", "kind", "born", "address", "tags"],
    },
}


def tokens_per_second(llm: LLM, batch: int, tokens: int, output: GrammarSpec | None, round_number: int) -> float:
    """Of a whole batch, its short prompts included."""
    prompts = [[1 + (7 * i + n) % 200 for n in range(8)] for i in range(batch)]
    params = [
        SamplingParams(max_tokens=tokens, temperature=0.8, seed=1000 * round_number + i, ignore_eos=True)
        for i in range(batch)
    ]
    begin = time.perf_counter()
    answers = llm.generate(prompts, params, output=output)
    seconds = time.perf_counter() - begin
    made = sum(len(answer.token_ids) for answer in answers)
    if made != batch * tokens:
        raise SystemExit(f"{made} tokens were made in place of {batch * tokens}")
    return made / seconds


def measure(llm: LLM, batch: int, tokens: int, rounds: int) -> dict[str, Any]:
    """Medians of both, and of the quotients of neighbouring rounds."""
    spec = JsonSchema(SCHEMA, strict=True)
    tokens_per_second(llm, batch, 8, None, 0)
    tokens_per_second(llm, batch, 8, spec, 0)  # the vocabulary is read, the grammar prepared
    free: list[float] = []
    bound: list[float] = []
    sides: list[tuple[GrammarSpec | None, list[float]]] = [(None, free), (spec, bound)]
    for number, order in in_turns(sides, rounds):
        for output, found in order:
            found.append(tokens_per_second(llm, batch, tokens, output, number + 1))
    kept = Interval.of_ratios(bound, free)
    return {
        "free_tokens_s": round(statistics.median(free), 1),
        "bound_tokens_s": round(statistics.median(bound), 1),
        "cost": round(1 - kept.median, 4),
        "ratio": kept.to_json(),
        "free": [round(value, 1) for value in free],
        "bound": [round(value, 1) for value in bound],
    }


def main() -> None:
    """Prints one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    settings = {} if given.threads is None else {"threads": given.threads}
    with LLM(given.model, max_model_len=1024, kv_cache_memory="256MiB", **settings) as llm:
        found = measure(llm, given.batch, given.tokens, given.rounds)
    print(json.dumps(record(batch=given.batch, tokens=given.tokens, **found)))


if __name__ == "__main__":
    main()
