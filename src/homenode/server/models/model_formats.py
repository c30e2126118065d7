"""The formats in which the served model writes calls and thoughts: chosen once for all of its conversations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from homenode.chat.choice import ChosenFormats, choose
from homenode.chat.syntax.reasoning import RAW
from homenode.server.http.config import ServedModelConfig
from homenode.server.interfaces.tokenizer import TokenizerLike


@dataclass(frozen=True)
class ConversationFormats:
    """`template`: the text of the chat template. `marks`: the special tokens, by id, that `chosen` needs to see."""

    template: str
    chosen: ChosenFormats
    marks: frozenset[int]

    @property
    def has_thoughts(self) -> bool:
        """Return whether the model marks thoughts."""
        return self.chosen.thoughts_name != RAW


class ModelFormats:
    """The formats of the served model. Its chat template may be another one where tools are offered."""

    def __init__(self, tokenizer: TokenizerLike, config: ServedModelConfig) -> None:
        self._tokenizer, self._config = tokenizer, config

    def of(self, *, with_tools: bool) -> ConversationFormats:
        """Return those of conversations in which tools are offered, or of others."""
        return self._with_tools if with_tools else self._plain

    @cached_property
    def _with_tools(self) -> ConversationFormats:
        return self._of(self._tokenizer.template_source(True))

    @cached_property
    def _plain(self) -> ConversationFormats:
        return self._of(self._tokenizer.template_source(False))

    def _of(self, template: str | None) -> ConversationFormats:
        chosen = choose(
            template,
            response_template=self._tokenizer.response_template,
            tool_parser=self._config.tool_call_parser,
            reasoning_parser=self._config.reasoning_parser,
        )
        marks = self._tokenizer.special_tokens_in((*chosen.tools.marks, *chosen.thoughts.marks))
        return ConversationFormats(template or "", chosen, frozenset(marks))
