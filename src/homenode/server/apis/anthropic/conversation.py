"""A request of the Messages API in the words of the conversation core."""

from __future__ import annotations

from typing import Any

from homenode.grammars.spec import GrammarSpec, JsonSchema
from homenode.server.apis.anthropic.history import HistoryReader
from homenode.server.apis.anthropic.request import MessagesPrompt, MessagesRequest, MessagesThinking
from homenode.server.apis.anthropic.tools import tool_offer
from homenode.server.core.conversation import ConversationRequest
from homenode.server.core.media.content import Note
from homenode.server.core.thought_seal import ThoughtSeal
from homenode.server.models.media import NO_MEDIA, Taken

_THINKS = {"enabled": True, "adaptive": True, "between_tools": True, "disabled": False}
CLEARS_THOUGHTS = "clear_thinking_20251015"  # an edit of the context which chat templates do by themselves


def prompt_request(
    body: MessagesPrompt, seal: ThoughtSeal, note: Note, *, taken: Taken = NO_MEDIA, **rest: Any
) -> ConversationRequest:
    """Return what the prompt is made of, with `rest` for the other fields. `seal`: of thoughts that were not shown.
    `taken`: the media that the model takes.

    Raises ApiError 400.
    """
    history = HistoryReader(seal, note, taken=taken)
    history.system(body.system)
    history.messages(body.messages)
    return ConversationRequest(
        messages=history.template_messages(),
        offer=tool_offer(body.tools, body.tool_choice, note),
        reasoning_effort=body.output_config.effort if body.output_config else None,
        thinking=_THINKS[body.thinking.type] if body.thinking else None,
        template_kwargs=body.chat_template_kwargs,
        add_generation_prompt=False if history.ends_open else None,
        continue_final=history.ends_open,
        **rest,
    )


def answer_request(
    body: MessagesRequest, seal: ThoughtSeal, note: Note, *, taken: Taken = NO_MEDIA
) -> ConversationRequest:
    """The whole request. Raises ApiError 400."""
    _note_edits(body.context_management, note)
    output, output_param = _output(body)
    budget = body.thinking.budget_tokens if body.thinking else None
    return prompt_request(
        body,
        seal,
        note,
        taken=taken,
        output=output,
        output_param=output_param,
        thinking_budget=budget if body.thinking_token_budget is None else body.thinking_token_budget,
        sampling=body.sampling(stop=body.stop_sequences or []),
        max_tokens=body.max_tokens,
        service_tier="standard" if body.service_tier == "standard_only" else body.service_tier,
        priority=body.priority,
        cache_salt=body.cache_salt or "",
        session=body.session or "",
        speculative=body.speculative is not False,
        stream=bool(body.stream),
        kv_transfer=body.kv_transfer_params,
    )


def shows_thoughts(thinking: MessagesThinking | None) -> bool:
    """Return whether the client wants to read what the model thinks."""
    return thinking is None or thinking.display != "omitted"


def _output(body: MessagesPrompt) -> tuple[GrammarSpec | None, str]:
    """Return what the text of the answer is bound to, and the field that says so."""
    config = body.output_config.format if body.output_config else None
    if config is not None:
        return JsonSchema(config.schema, strict=True), "output_config.format.schema"
    if body.output_format is not None:
        return JsonSchema(body.output_format.schema, strict=True), "output_format.schema"
    return None, ""


def _note_edits(management: dict[str, Any] | None, note: Note) -> None:
    edits = (management or {}).get("edits")
    for number, edit in enumerate(edits if isinstance(edits, list) else ()):
        kind = edit.get("type") if isinstance(edit, dict) else None
        if isinstance(kind, str) and kind != CLEARS_THOUGHTS:
            note(kind, f"context_management.edits[{number}]")
