"""The prompt of a conversation where no server is asked for it: the command line and Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from homenode.chat.choice import choose
from homenode.chat.conversation_prompt import TemplateConversation, conversation_prompt
from homenode.chat.switches import same_switch

if TYPE_CHECKING:
    from homenode.chat.whole_prompt import RenderedPrompt
    from homenode.model.tokenizer.tokenizer import Tokenizer


def chat_prompt(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
    values: Mapping[str, Any] | None = None,
) -> RenderedPrompt:
    """Return what the model's chat template makes of a conversation with tools. `values`: what else the template is
    given.

    Raises UserError where there is no template, or it refuses the conversation.
    """
    source = tokenizer.template_source(bool(tools)) or ""
    chosen = choose(source, response_template=tokenizer.response_template)
    given = same_switch(source, dict(values or {}))
    return conversation_prompt(
        TemplateConversation(source, chosen.tools, messages, tools),
        lambda said, shown: tokenizer.render_chat(said, tools=shown, **given),
    )
