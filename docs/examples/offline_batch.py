"""Answer a batch of prompts without a server: one engine in this process computes them together.

Run it: `python docs/examples/offline_batch.py`.
"""

from __future__ import annotations

from homenode import LLM, SamplingParams

QUESTIONS = ["What is NUMA?", "What is three plus four?", "What is a socket?", "What is a KV cache?"]


def main() -> None:
    greedy = SamplingParams(max_tokens=48, temperature=0)
    with LLM(threads=1) as llm:  # the built-in model; LLM("Qwen/Qwen3-0.6B") or a path serves another
        for question in QUESTIONS:
            print(f"{question:26} {llm.chat([{'role': 'user', 'content': question}], greedy).text}")

        # `generate` takes all prompts at once: they share each step, and each gets the tokens it would get alone.
        together = llm.generate(["Once upon a time", "One, two,", "Once upon a time"], greedy)
        alone = llm.generate(["Once upon a time"], greedy)[0]
        for completion in together:
            print(f"{completion.text[:60]!r} ({len(completion.token_ids)} tokens, {completion.finish_reason})")
        print("the same tokens in a batch and alone:", together[0].token_ids == alone.token_ids)


if __name__ == "__main__":
    main()
