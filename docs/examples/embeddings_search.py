"""Search documents by meaning: a vector of each, and those nearest to the query's first.

Run it: `python docs/examples/embeddings_search.py`.

The built-in model writes text; `runner="pooling"` makes vectors of its rows instead. A model that was made for
vectors, such as all-MiniLM-L6-v2, needs neither argument and searches far better.
"""

from __future__ import annotations

import numpy as np

from homenode import LLM

DOCUMENTS = [
    "A NUMA machine has several nodes, each with its own cores and memory.",
    "A small whale named Bruno swam through the cold sea.",
    "Seven plus five is twelve.",
    "The server answers the OpenAI API.",
]
QUERIES = ["What is NUMA?", "What is three plus four?"]


def main() -> None:
    with LLM(threads=1, runner="pooling", pooling="mean") as llm:
        index = llm.embed(DOCUMENTS)  # one row of float32 for each text, of length 1
        print(f"{index.shape[0]} vectors of {index.shape[1]} numbers")
        for query, vector in zip(QUERIES, llm.embed(QUERIES), strict=True):
            nearness = index @ vector  # the cosine, as all vectors have length 1
            best = int(np.argmax(nearness))
            print(f"{query:32} {nearness[best]:.2f}  {DOCUMENTS[best]}")
        # Of a pair alone, `score` says the same; a reranker has scores of its own.
        print(f"by score: {llm.score(QUERIES[0], DOCUMENTS[:1])[0]:.2f}")


if __name__ == "__main__":
    main()
