"""Settings of the text side: vocabulary and chat template other than the model's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from homenode.errors import UserError
from homenode.model.tokenizer.model_tokenizer import load_model_tokenizer
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
        if self.tokenizer:
            return load_tokenizer(Path(self.tokenizer), self._template())
        return load_model_tokenizer(model, self._template())

    def _template(self) -> str | None:
        if self.chat_template is None:
            return None
        file = Path(self.chat_template)
        try:
            if file.stat().st_size > _LARGEST_TEMPLATE:
                raise UserError(
                    f"--chat-template {file} has {file.stat().st_size} bytes; at most {_LARGEST_TEMPLATE} are read",
                    param="chat_template",
                )
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--chat-template {file} cannot be read: {error}", param="chat_template") from error
