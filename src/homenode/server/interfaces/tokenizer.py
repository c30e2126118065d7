"""The interface that the server needs of a tokenizer. `homenode.model.tokenizer.Tokenizer` fulfils it; tests use
scripted ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

from homenode.engine.sequence_text import TextStream
from homenode.model.tokenizer.fill_in_middle import FillInMiddleTokens
from homenode.model.tokenizer.literal_text import HiddenNames
from homenode.model.tokenizer.surrounding_tokens import SurroundingTokens


class TokenizerLike(Protocol):
    """Text to token ids and back, and the chat template. Safe to use from several threads."""

    vocab_size: int
    bos_token_id: int | None
    stop_token_ids: tuple[int, ...]  # what ends an answer besides the ids in the model's configuration

    eos_token_id: int | None

    @property
    def fill_in_middle(self) -> FillInMiddleTokens | None: ...

    @property
    def has_chat_template(self) -> bool: ...

    @property
    def surrounding(self) -> SurroundingTokens: ...

    @property
    def bytes_are_text(self) -> bool: ...

    @property
    def special_token_ids(self) -> Collection[int]: ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def encode_pieces(
        self, text: str, add_special_tokens: bool = True, hidden: HiddenNames | None = None
    ) -> Iterator[list[int]]:
        """The ids that `encode` gives, some at a time. `hidden`: the names that were hidden in the text before it was
        rendered.
        """

    def hidden_names(self) -> HiddenNames:
        """Return the hidden names for one conversation: hides the names of control tokens in it, so that they do not
        become tokens.
        """

    def fewest_tokens(self, text: str) -> int:
        """A number of tokens that `text` certainly has, told without encoding it."""

    def encode_chat_pieces(
        self, text: str, add_special_tokens: bool | None = None, hidden: HiddenNames | None = None
    ) -> Iterator[list[int]]:
        """The ids of a rendered conversation, with the special tokens that its template leaves to the model's file."""

    def chat_prompt(self, ids: list[int], add_special_tokens: bool | None = None) -> list[int]:
        """The prompt of a conversation encoded to `ids`, with the special tokens that its template leaves to the
        model's file.
        """

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...

    def token_text(self, token: int) -> str: ...

    def token_bytes(self, token: int) -> bytes: ...

    def special_tokens_in(self, texts: Sequence[str]) -> dict[int, str]:
        """The special tokens, by id, whose names occur in one of these texts."""

    def stream(
        self, context: Sequence[int] = (), skip_special_tokens: bool = True, shown: Collection[int] = ()
    ) -> TextStream:
        """An incremental decoder; `context` are ids before the first pushed one whose text is already known. `shown`:
        special tokens that have text even where others are skipped.
        """

    def template_source(self, with_tools: bool = False) -> str | None:
        """The text of the chat template for conversations, or for those `with_tools`; None where there is none."""

    @property
    def response_template(self) -> Any:
        """Return what tokenizer_config.json says about the form of answers, None where it says nothing."""

    def render_chat(
        self,
        /,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **values: Any,
    ) -> str:
        """The prompt for `messages`. Raises UserError when there is no template or the template refuses them."""

    def info(self) -> dict[str, Any]: ...
