"""Settings of the text side: vocabulary and chat template other than the model's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from homenode.errors import CheckpointError, UserError
from homenode.model.checkpoint.reading import read_text
from homenode.model.tokenizer.tokenizer import Tokenizer, load_tokenizer
from homenode.options import option

_LARGEST_TEMPLATE = 1 << 20


@dataclass(frozen=True)
class TextConfig:
    """Where text becomes tokens. The defaults are the model's own."""

    tokenizer: str | None = option(
        None, "Folder (with tokenizer.json) or GGUF file whose vocabulary stands in for the model's.", metavar="PATH"
    )
    chat_template: str | None = option(
        None, "File with a jinja2 chat template that stands in for the model's.", metavar="FILE"
    )

    def load(self, model: Path) -> Tokenizer:
        """The tokenizer to use with the model at `model`. Raises UserError or CheckpointError for what cannot be read."""
        return load_tokenizer(Path(self.tokenizer) if self.tokenizer else model, self._template())

    def _template(self) -> str | None:
        if self.chat_template is None:
            return None
        try:
            return read_text(Path(self.chat_template), _LARGEST_TEMPLATE, any_target=True)
        except CheckpointError as error:
            raise UserError(f"--chat-template {error.message}", param="chat_template") from error
