"""The vocabulary of a worker's model, for grammars."""

from __future__ import annotations

from pathlib import Path

from homenode.grammars.vocabulary import Vocabulary
from homenode.model.spec import ModelSpec
from homenode.model.tokenizer.loader import load_untried


def read_vocabulary(path: Path, spec: ModelSpec) -> Vocabulary:
    """Of the model at `path`, whose tokenizer its front has tried before. Raises CheckpointError.

    What ends an answer by the tokenizer's files alone comes with each request, among its stop tokens.
    """
    tokenizer = load_untried(path)
    return Vocabulary(tokenizer, spec.vocab_size, spec.eos_token_ids or tokenizer.stop_token_ids)
