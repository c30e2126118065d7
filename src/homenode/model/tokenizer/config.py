"""Settings of the text side: vocabulary and chat template other than the model's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from homenode.errors import UserError
from homenode.model.sandbox.renderer import DEFAULT_TIMEOUT_S
from homenode.model.tokenizer.tokenizer import Tokenizer, load_tokenizer
from homenode.options import option
from homenode.units import parse_seconds

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
    chat_template_timeout: float = option(
        DEFAULT_TIMEOUT_S,
        "How long a chat template may take to make a conversation a prompt, such as 5s; after that the request is refused.",
        parse=parse_seconds,
        minimum=0.1,
        maximum=600,
    )

    def load(self, model: Path) -> Tokenizer:
        """The tokenizer to use with the model at `model`. Raises UserError or CheckpointError for what cannot be read."""
        path = Path(self.tokenizer) if self.tokenizer else model
        return load_tokenizer(path, self._template(), self.chat_template_timeout)

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
