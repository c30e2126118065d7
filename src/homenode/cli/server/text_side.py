"""The lines that `serve --show-config` prints of a model's text: the tokens that end an answer, and the formats of tool
calls and thoughts.
"""

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
    from homenode.server.http.config import ServerConfig


def print_text_side(model: ModelConfig, text: TextConfig, server: ServerConfig) -> None:
    """A line of names and ids of tokens, and lines of formats with the reason for each. Nothing is fetched: of a model
    that is not here, or cannot be read, a note says why there are no such lines.
    """
    from homenode.model.checkpoint.index import open_checkpoint
    from homenode.model.hub.locate import locate
    from homenode.server.models.model_formats import ModelFormats

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
    _print(f"tokens that end an answer: {told}")
    chosen = ModelFormats(tokenizer, server).of(with_tools=True).chosen
    _print(f"tool call parser: {chosen.tools.name}, as {_printable(chosen.tools_because)}")
    _print(f"reasoning parser: {chosen.thoughts_name}, as {_printable(chosen.thoughts_because)}")


def _print(line: str) -> None:
    OUT.print(line, markup=False, highlight=False, soft_wrap=True)


def _named(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    return ", ".join(f"{_printable(tokenizer.token_text(token))} ({token})" for token in ids)


def _printable(name: str) -> str:
    """A name out of a file, without anything a terminal would obey."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
