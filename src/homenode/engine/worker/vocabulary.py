"""The vocabulary that the tokens of a worker's model are text by, for grammars."""

from __future__ import annotations

from pathlib import Path

from homenode.engine.channels.messages import Join
from homenode.grammars.vocabulary import Vocabulary
from homenode.model.files_read import recorded_files
from homenode.model.identity import refuse_other_texts
from homenode.model.spec import ModelSpec
from homenode.model.tokenizer.loader import load_untried


def read_vocabulary(join: Join, spec: ModelSpec) -> Vocabulary:
    """Read the vocabulary of the model, or the one that stands in for it, which the front has tried before. Raises
    CheckpointError, also for files that are not those which the engine began with.

    What ends an answer by the tokenizer's files alone comes with each request, among its stop tokens.
    """
    path = Path(str(join.config.model.vocabulary or join.config.model.path))
    with recorded_files() as read:
        tokenizer = load_untried(path)
    refuse_other_texts(f"worker {join.number}", str(path), join.texts, read.texts)
    return Vocabulary(tokenizer, spec.vocab_size, spec.eos_token_ids or tokenizer.stop_token_ids)
