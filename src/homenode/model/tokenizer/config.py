"""Settings of the text side: vocabulary and chat template other than the model's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from homenode.errors import CheckpointError, UserError
from homenode.model.formats.bounded_files import read_text, refuse_links
from homenode.model.sandbox.renderer import DEFAULT_TIMEOUT_S
from homenode.model.tokenizer.loader import begin_trial, load_tokenizer
from homenode.model.tokenizer.model_tokenizer import load_model_tokenizer
from homenode.model.tokenizer.tokenizer import Tokenizer
from homenode.model.tokenizer.trial_run import TokenizerTrial
from homenode.options import option
from homenode.units import parse_seconds

_LARGEST_TEMPLATE = 1 << 20


@dataclass(frozen=True)
class TextConfig:
    """Settings of how text becomes tokens. The defaults are the model's own."""

    tokenizer: str | None = option(
        None, "Folder (with tokenizer.json) or GGUF file whose vocabulary stands in for the model's.", metavar="PATH"
    )
    chat_template: str | None = option(
        None, "File with a jinja2 chat template that stands in for the model's.", metavar="FILE"
    )
    chat_template_timeout: float = option(
        DEFAULT_TIMEOUT_S,
        "How long a chat template may take to make a conversation a prompt, such as 5s; after that the request is "
        "refused.",
        parse=parse_seconds,
        minimum=0.1,
        maximum=600,
    )

    def check_links(self, allowed: bool) -> None:
        """Raises CheckpointError where links are not `allowed` and the stand-in vocabulary is one or holds one."""
        if self.tokenizer and not allowed:
            refuse_links(Path(self.tokenizer))

    def begin_trial(self, model: Path) -> TokenizerTrial | None:
        """Begin to try the files of that tokenizer, as far as they need it, so that other work can be done until `load`
        is called.
        """
        return begin_trial(Path(self.tokenizer) if self.tokenizer else model)

    def load(self, model: Path, trial: TokenizerTrial | None = None) -> Tokenizer:
        """The tokenizer to use with the model at `model`; `trial`: if it has begun. Raises UserError or CheckpointError
        for what cannot be read.
        """
        load = load_tokenizer if self.tokenizer else load_model_tokenizer
        path = Path(self.tokenizer) if self.tokenizer else model
        return load(path, self._template(), self.chat_template_timeout, trial)

    def _template(self) -> str | None:
        if self.chat_template is None:
            return None
        try:
            return read_text(Path(self.chat_template), _LARGEST_TEMPLATE, any_target=True)
        except CheckpointError as error:
            raise UserError(f"--chat-template {error.message}", param="chat_template") from error
