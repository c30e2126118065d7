"""The place where every API that answers with a message begins: a conversation becomes a generation, and its text a
message.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import msgspec

from homenode.chat.call_grammar import binds_calls
from homenode.chat.conversation_prompt import TemplateConversation, begun_answer
from homenode.chat.offer import ToolOffer, ToolUse
from homenode.chat.sent_texts import SentText
from homenode.chat.switches import same_switch, thinking_values
from homenode.grammars.compile import CompiledGrammar
from homenode.grammars.field_path import FieldPath
from homenode.grammars.spec import GrammarSpec
from homenode.sampling import SamplingParams
from homenode.server.core.choices.message_grammar import message_grammar
from homenode.server.core.choices.message_reader import MessageEvent, MessageReader
from homenode.server.core.generation import Generation
from homenode.server.core.kv_transfer import KvTransferParams
from homenode.server.core.media.content import take_media
from homenode.server.core.prompt_cut import PromptCut
from homenode.server.core.prompts import EncodedPrompt, PromptText, chat_text, encode_chat_text
from homenode.server.core.request import GenerationRequest, begin, check_limits
from homenode.server.http.failures import ApiError
from homenode.server.keys.service_tiers import AskedTier
from homenode.server.models.model_formats import ConversationFormats
from homenode.server.models.served_model import AskedModel, ServedModel


@dataclass(frozen=True, kw_only=True)
class ConversationRequest:
    """One request of any API that answers with a message.

    `messages`: as chat templates know them: role, content (a text or text parts), and perhaps tool_calls, tool_call_id,
    name, reasoning_content. `output`: what the content is bound to, which came by the field `output_param`.
    `thinking_budget`: the most tokens of thoughts. `reasoning_effort`: from `none` to `max`. `thinking`: whether there
    are to be thoughts, None: as the chat template does by itself; both reach the template by whichever name it has for
    them. `raw_thoughts`: they stay in the content as the model wrote them. `text`: the prompt where no chat template is
    to make it of the messages. `earlier_ids`: tokens before the prompt, of turns that are told by them alone. `cut`:
    how a prompt that is too long is cut; None: it is refused. The other fields are those of `GenerationRequest`.
    """

    messages: list[dict[str, Any]]
    offer: ToolOffer | None = None
    output: GrammarSpec | None = None
    output_param: str = "response_format"
    reasoning_effort: str | None = None
    thinking: bool | None = None
    thinking_budget: int | None = None
    raw_thoughts: bool = False
    text: PromptText | None = None
    earlier_ids: Sequence[int] = ()
    cut: PromptCut | None = None
    template_kwargs: Mapping[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final: bool = False
    add_special_tokens: bool | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    skip_special_tokens: bool = True
    service_tier: AskedTier | None = None
    priority: int | None = None
    cache_salt: str = ""
    speculative: bool = True
    session: str = ""
    token_ids: bool = False
    shows_stop: bool = False
    stream: bool = False
    kv_transfer: KvTransferParams | None = None

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools that the model is told about."""
        return self.offer.tools if self.offer else []

    @property
    def callable_tools(self) -> list[dict[str, Any]]:
        """Return those that it may call."""
        return self.offer.tools if self.offer and self.offer.use is not ToolUse.NONE else []

    @property
    def begun(self) -> str:
        """The beginning of the answer, with which the prompt ends."""
        return begun_answer(self.messages) if self.continue_final and self.text is None else ""


class Conversation:
    """The answers to a conversation, whose generation has not begun before `events` is read."""

    def __init__(
        self,
        generation: Generation,
        readers: Sequence[MessageReader],
        left_out: Sequence[SentText] = (),
        not_kept: Sequence[FieldPath] = (),
    ) -> None:
        """`readers`: of the choices, in order. `left_out`: what of the request the prompt does not show. `not_kept`:
        words of schemas that the answer is not bound to.
        """
        self.generation, self._readers, self.left_out, self.not_kept = generation, readers, left_out, not_kept

    @property
    def thought_tokens(self) -> int:
        """Tokens so far, of all choices, that were thoughts."""
        return sum(reader.thought_tokens for reader in self._readers)

    async def events(self) -> AsyncGenerator[MessageEvent, None]:
        """The events of all choices as they come. Raises ApiError when the engine ends a sequence without a result."""
        async with aclosing(self.generation.events()) as events:
            async for event in events:
                read = self._readers[event.choice].read(event)
                if read.finish_reason is not None and event.finish_reason is None:
                    self.generation.end(event.choice)
                yield read


async def begin_conversation(asked_model: AskedModel, request: ConversationRequest) -> Conversation:
    """Nothing runs before `Conversation.events`. Raises ApiError 400, and UserError when the chat template refuses the
    messages.
    """
    model = asked_model.model
    _check_offer(request.offer)
    check_limits(model, 1, request.sampling)
    formats = model.formats.of(with_tools=bool(request.tools))
    text = request.text or await conversation_text(model, request)
    grammar = await conversation_grammar(model, request, text.text)
    cut, most = request.cut, request.max_tokens
    prompt = await encode_chat_text(
        model, text, request.add_special_tokens, request.earlier_ids, cut=cut, max_tokens=most
    )
    reads = bool(request.callable_tools) or formats.has_thoughts or formats.chosen.tools.without_tools
    generation = await begin(
        asked_model,
        GenerationRequest(
            prompts=(prompt,),
            sampling=msgspec.structs.replace(request.sampling, grammar=grammar and grammar.text),
            max_tokens=request.max_tokens,
            skip_special_tokens=request.skip_special_tokens,
            shown_tokens=formats.marks if reads else frozenset(),
            service_tier=request.service_tier,
            priority=request.priority,
            cache_salt=request.cache_salt,
            speculative=request.speculative,
            session=request.session,
            token_ids=request.token_ids,
            shows_stop=request.shows_stop,
            stream=request.stream,
            kv_transfer=request.kv_transfer,
        ),
    )
    readers = [_reader(request, formats, text.text, reads) for _ in generation.sequences]
    left_out = [*text.left_out, *told_cut(cut, prompt)]
    return Conversation(generation, readers, left_out, grammar.left_out if grammar else ())


def told_cut(cut: PromptCut | None, prompt: EncodedPrompt) -> list[SentText]:
    """Return what to tell of a prompt that may have been cut."""
    return [SentText(cut.field, "", by_template=True)] if cut is not None and prompt.left_out else []


async def conversation_grammar(model: ServedModel, request: ConversationRequest, prompt: str) -> CompiledGrammar | None:
    """Return what the answer to `prompt`, the text of the conversation, is bound to; None: nothing. Raises ApiError
    400.
    """
    return await message_grammar(
        model,
        model.formats.of(with_tools=bool(request.tools)),
        prompt,
        offer=request.offer,
        output=request.output,
        output_param=request.output_param,
        thinking_budget=request.thinking_budget,
        begun=request.begun,
    )


def _reader(request: ConversationRequest, formats: ConversationFormats, prompt: str, reads: bool) -> MessageReader:
    if not reads:
        return MessageReader(None)
    offer = request.offer
    return MessageReader.of(
        formats.chosen,
        prompt,
        request.callable_tools,
        raw_thoughts=request.raw_thoughts,
        parallel=offer is None or offer.parallel,
        eager=offer is not None and binds_calls(offer),
        begun=request.begun,
        taken_ids=_call_ids(request.messages),
    )


def _call_ids(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The ids of calls in a conversation."""
    for message in messages:
        for call in message.get("tool_calls") or ():
            if isinstance(call, Mapping) and isinstance(call.get("id"), str):
                yield call["id"]


async def conversation_text(model: ServedModel, request: ConversationRequest) -> PromptText:
    """Return what the model sees of a conversation. Raises ApiError 400, and UserError as `begin_conversation`."""
    formats = model.formats.of(with_tools=bool(request.tools))
    template = formats.template
    messages, media = take_media(request.messages, model.media_marked_in_text)
    if media:
        from homenode.server.core.media.media_prompts import check_media

        check_media(model, media)
    asked = thinking_values(template, thinking=request.thinking, effort=request.reasoning_effort)
    text = await chat_text(
        model,
        TemplateConversation(template, formats.chosen.tools, messages, request.tools),
        template_kwargs={**asked, **same_switch(template, dict(request.template_kwargs or {}))},
        add_generation_prompt=request.add_generation_prompt,
        continue_final=request.continue_final,
    )
    return text._replace(media=tuple(media)) if media else text


def _check_offer(offer: ToolOffer | None) -> None:
    if offer is None:
        return
    names = [tool["function"]["name"] for tool in offer.tools]
    if offer.named is not None and offer.named not in names:
        text = f"`tool_choice` names `{offer.named[:200]}`, which is not among the tools"
        raise ApiError(400, text, param="tool_choice", code="invalid_value")
    if offer.use is ToolUse.REQUIRED and not names:
        text = "`tool_choice` requires a call, but `tools` offers nothing to call"
        raise ApiError(400, text, param="tool_choice", code="invalid_value")
