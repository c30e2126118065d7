"""The prompt that a chat template makes of a conversation with tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from homenode.chat.formats import ToolFormat
from homenode.chat.history import conversation_for
from homenode.chat.rearrangements import rearrangements
from homenode.chat.sent_texts import SentText, sent_texts
from homenode.chat.template_messages import template_tools
from homenode.chat.whole_prompt import Arrangement, Messages, Render, RenderedPrompt, render_whole

Hide = Callable[[Any], Any]  # a value of JSON with other texts in it


@dataclass(frozen=True)
class TemplateConversation:
    """The parts that a prompt is made of. `template`: the text of the chat template of a model that writes calls in
    `tool_format`. `messages`: role, content (a text or text parts), and perhaps tool_calls, tool_call_id, name,
    reasoning_content. `tools`: as requests have them.
    """

    template: str
    tool_format: ToolFormat
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()


def conversation_prompt(
    conversation: TemplateConversation,
    render: Render,
    *,
    hide: Hide = lambda value: value,
    end: str = "",
    goes_on: Callable[[], bool] = lambda: True,
) -> RenderedPrompt:
    """The prompt, which shows all that the template can be made to show.

    `hide`: what is done to all texts before they are rendered. `end`: a mark to put at the end of the last message.
    `goes_on`: whether there is time for one more rendering. Raises UserError where the template refuses.
    """
    tools = template_tools(conversation.tools, conversation.template)
    said = hide(conversation_for(conversation.template, conversation.tool_format, conversation.messages, tools))
    sent = sent_texts(hide(list(conversation.messages)), hide(list(conversation.tools)))
    if end:
        said = _with_end(said, end)
        sent.append(SentText("messages", end))
    return render_whole(
        render,
        Arrangement(said, hide(tools) or None),
        sent,
        rearrangements(conversation.template, conversation.tool_format),
        goes_on,
    )


def begun_answer(messages: Sequence[Mapping[str, Any]]) -> str:
    """The text of the last message, which an answer goes on from."""
    content = messages[-1].get("content") if messages else None
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return content if isinstance(content, str) else ""


def _with_end(messages: Messages, end: str) -> Messages:
    """The messages with a mark at the end of the last text."""
    *before, last = messages
    content = last.get("content")
    if isinstance(content, list) and content:
        *parts, part = content
        return [*before, {**last, "content": [*parts, {**part, "text": f"{part.get('text', '')}{end}"}]}]
    return [*before, {**last, "content": f"{content or ''}{end}"}]
