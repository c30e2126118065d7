"""The tokenizer of a model that is to be run, which is more than a vocabulary: what is wrong with the model itself is
told first.
"""

from __future__ import annotations

from pathlib import Path

from homenode.errors import UserError
from homenode.model.sandbox.renderer import DEFAULT_TIMEOUT_S
from homenode.model.tokenizer.loader import load_tokenizer
from homenode.model.tokenizer.tokenizer import Tokenizer
from homenode.model.tokenizer.trial_run import TokenizerTrial


def load_model_tokenizer(
    model: Path,
    chat_template: str | None = None,
    chat_template_timeout: float = DEFAULT_TIMEOUT_S,
    trial: TokenizerTrial | None = None,
) -> Tokenizer:
    """The tokenizer of the model at `model`, with the arguments of `load_tokenizer`.

    Where it cannot be read the model's other files are opened, and the error for those is raised if there is one: a
    folder without config.json, or of an architecture that homenode does not run, often lacks a tokenizer as well, and
    that is not what is wrong with it. Raises what `load_tokenizer` and `open_checkpoint` raise.
    """
    try:
        return load_tokenizer(model, chat_template, chat_template_timeout, trial)
    except UserError:
        from homenode.model.checkpoint.index import open_checkpoint  # slow to import, and seldom needed here

        open_checkpoint(model)
        raise
