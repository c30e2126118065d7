"""The tokens that end an answer, as `serve --show-config` prints them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from homenode.cli.output.report import ERR, OUT
from homenode.errors import HomenodeError
from homenode.model.tokenizer.config import TextConfig

if TYPE_CHECKING:
    from homenode.engine.config import ModelConfig
    from homenode.model.tokenizer import Tokenizer


def print_stop_tokens(model: ModelConfig, text: TextConfig) -> None:
    """One line of names and ids. Nothing is fetched: of a model that is not here, or cannot be read, a note says why
    there is no such line.
    """
    from homenode.model.checkpoint.index import open_checkpoint
    from homenode.model.hub.locate import locate

    try:
        path = Path(model.path) if model.path else locate(model.model, revision=model.revision, offline=True)
        tokenizer = text.load(path)
        ids = dict.fromkeys((*open_checkpoint(path).spec.eos_token_ids, *tokenizer.stop_token_ids))
    except HomenodeError as error:
        ERR.print(
            f"note: the tokens that end an answer are not known: {error.message}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        return
    told = _named(tokenizer, ids) or "none; the model's files name no such token"
    OUT.print(f"tokens that end an answer: {told}", markup=False, highlight=False, soft_wrap=True)


def _named(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    return ", ".join(f"{_printable(tokenizer.token_text(token))} ({token})" for token in ids)


def _printable(name: str) -> str:
    """A name out of a file, without anything a terminal would obey."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
