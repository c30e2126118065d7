"""A comparison of two models' vocabularies: whether the tokens of one can be drafted by the other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from homenode.engine.config import EngineConfig
from homenode.errors import UserError
from homenode.model.checkpoint.index import OpenedCheckpoint
from homenode.model.checkpoint.vocabulary_file import vocabulary_file
from homenode.units import format_count

if TYPE_CHECKING:
    from homenode.model.tokenizer.tokenizer import Tokenizer


def vocabulary_problem(checkpoint: OpenedCheckpoint, config: EngineConfig) -> UserError | None:
    """Return an error that names the first token in which the vocabulary of the model that drafts differs, None where
    there is none. One may have more tokens than the other behind those of both. Of models without files of a vocabulary
    it is known alone how many tokens they have.
    """
    asked, drafting = config.speculation.resolved(), checkpoint.drafting
    if asked.model is None or drafting is None or drafting.path == checkpoint.path:
        return None
    sizes = checkpoint.spec.vocab_size, drafting.spec.vocab_size
    mine, theirs = _read(Path(str(config.model.vocabulary or checkpoint.path))), _read(drafting.path)
    if mine is None or theirs is None:
        counted = f"{format_count(sizes[1], 'token')}, and {checkpoint.path} has {sizes[0]}"
        return None if sizes[0] == sizes[1] else _problem(asked.model, counted)
    for token in range(min(sizes)):
        ours, others = mine.token_bytes(token), theirs.token_bytes(token)
        if ours != others and mine.has_token(token) and theirs.has_token(token):
            seen = f"token {token} is {_shown(others)} there and {_shown(ours)} in {checkpoint.path}"
            return _problem(asked.model, seen)
    return None


def _problem(model: str, seen: str) -> UserError:
    return UserError(
        f"--speculative-model {model} has another vocabulary: {seen}; give a smaller model of the same family",
        param="speculative_model",
    )


def _read(path: Path) -> Tokenizer | None:
    """The tokenizer of a model; None where it has no file of one."""
    if not vocabulary_file(path).is_file():
        return None
    from homenode.model.tokenizer.loader import begin_trial, load_untried  # engines without a draft model read no text

    if (trial := begin_trial(path)) is not None:
        trial.wait()
    return load_untried(path)


def _shown(token: bytes) -> str:
    return repr(token.decode("utf-8", "replace"))
