"""Prompts, as texts, token ids or conversations, turned into token ids and checked against the model's limits."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

from homenode.chat.conversation_prompt import TemplateConversation, conversation_prompt
from homenode.chat.sent_texts import SentText
from homenode.engine.inputs import PlacedRows, PromptPart, PromptRows, flatten
from homenode.model.tokenizer.literal_text import HiddenNames
from homenode.model.tokenizer.surrounding_tokens import beginning
from homenode.server.core.media.content import MediaSource
from homenode.server.core.prompt_cut import PromptCut, cut_tokens
from homenode.server.http.failures import CONTEXT_LENGTH_EXCEEDED, ApiError
from homenode.server.models.served_model import ServedModel
from homenode.server.models.text_work import SHORT_TEXT, memory_of
from homenode.units import format_count

PROMPTS_AT_ONCE = 16  # of many, those that are encoded before other requests get a turn
_MOST_PROMPT_TOKENS = 2**22  # of all sequences of a request; each takes its prompt to the engine
_LONGEST_RENDERINGS_S = 2.0  # of one conversation; what a template shows less of is rendered in other ways so long
_OWN_VALUES = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message"})
_SLICE = 2**18  # token ids that are looked through while no other thread of Python runs


class EncodedPrompt(NamedTuple):
    """Token ids of a prompt that fits the context, and its text where the client gave one. `second_from`, `rows`: see
    `homenode.engine.request.Request`. `left_out`: tokens of a longer one that it lacks.
    """

    ids: list[int]
    text: str | None = None
    second_from: int = 0
    left_out: int = 0
    rows: Sequence[PlacedRows] = ()

    @classmethod
    def of_parts(cls, parts: Iterable[PromptPart]) -> EncodedPrompt:
        """Return the prompt of token ids, and of rows that take the place of their embeddings."""
        ids, rows = flatten(parts)
        return cls(ids, rows=rows)

    @property
    def text_ids(self) -> list[int]:
        """The ids behind the last row: what a text goes on from."""
        return self.ids[self.rows[-1].past :] if self.rows else self.ids


class PromptText(NamedTuple):
    """A text to encode. `hidden`: the names of control tokens that were hidden in it, where they are to stay text.
    `left_out`: what of a conversation it does not show. `media`: those that the chat template has written a name for,
    in order.
    """

    text: str
    hidden: HiddenNames | None = None
    left_out: tuple[SentText, ...] = ()
    media: tuple[MediaSource, ...] = ()

    @property
    def shown(self) -> str:
        """The text with hidden names in their places."""
        return self.text if self.hidden is None else self.hidden.reveal(self.text)


def texts_memory(prompts: Sequence[str | list[int]]) -> int:
    """Bytes that the texts among the prompts take in memory."""
    return sum(memory_of(prompt) for prompt in prompts if isinstance(prompt, str))


def split_prompts(prompt: str | list[str | int | list[int]], param: str) -> list[str | list[int]]:
    """The prompts in the four forms of the field `param`: a text, token ids, or a list of either. Raises ApiError 400
    for an empty or mixed list.
    """
    if isinstance(prompt, str):
        return [prompt]
    kinds = set(map(type, prompt))
    if not prompt:
        text = f"`{param}` is an empty list; give a text, token ids or a list of either"
        raise ApiError(400, text, param=param, code="invalid_value")
    if kinds == {int}:
        return [prompt]  # type: ignore[list-item]
    if kinds in ({str}, {list}):
        return prompt  # type: ignore[return-value]
    text = f"`{param}` mixes kinds; its entries must be all texts, all token ids or all lists of token ids"
    raise ApiError(400, text, param=param, code="invalid_value")


async def encode_prompts(
    model: ServedModel,
    prompts: Sequence[str | list[int]],
    param: str,
    *,
    add_special_tokens: bool,
    n: int,
    most: int | None = None,
) -> list[EncodedPrompt]:
    """Several prompts, given as texts or token ids in the field `param`, each of which is answered `n` times. `most`:
    tokens, special ones among them, that are kept of the beginning of each; None: all, which then have to fit.

    The caller has reserved `texts_memory` of them. Raises ApiError 400, naming the prompt, for one that does not fit.
    """
    inline = sum(len(prompt) for prompt in prompts if isinstance(prompt, str)) <= SHORT_TEXT
    encoded, tokens = [], 0
    for number, prompt in enumerate(prompts):
        if number % PROMPTS_AT_ONCE == 0:
            await asyncio.sleep(0)  # others get a turn
        name = param if len(prompts) == 1 else f"{param}[{number}]"
        encoded.append(await _encode_prompt(model, prompt, name, add_special_tokens, most, inline=inline))
        tokens += len(encoded[-1].ids)
        check_prompt_tokens(tokens, param, n)
    return encoded


async def _encode_prompt(
    model: ServedModel, prompt: str | list[int], param: str, add_special_tokens: bool, most: int | None, *, inline: bool
) -> EncodedPrompt:
    """`inline`: at once, as it is short."""
    if isinstance(prompt, str):
        pooling = model.ready.pooling
        whole = prompt if pooling is None else pooling.text.of(prompt)
        ids = await fitting_ids(model, PromptText(whole), param, add_special_tokens, inline=inline, most=most)
        check_prompt(model, ids, param)
        return EncodedPrompt(ids, prompt)
    prompt = prompt[:most]
    check_prompt(model, prompt, param)
    check_token_ids(model, prompt, param)
    return EncodedPrompt(prompt)


async def encode_chat_text(
    model: ServedModel,
    prompt: PromptText,
    add_special_tokens: bool | None = None,
    earlier_ids: Sequence[int] = (),
    *,
    cut: PromptCut | None = None,
    max_tokens: int | None = None,
) -> EncodedPrompt:
    """A conversation that its chat template has rendered. `earlier_ids`: tokens before it, which begin a text already.
    `cut`: how it is cut where it is too long, for an answer of at most `max_tokens`; None: it is refused.

    What `add_special_tokens` does to it is told by `homenode.model.tokenizer.surrounding_tokens`. One with media is
    never cut.
    """
    rows: Sequence[PromptRows] = ()
    if prompt.media:
        from homenode.server.core.media.media_prompts import encode_media

        encoded = await encode_media(model, prompt.text, prompt.media)
        prompt, rows, cut = prompt._replace(text=encoded.text), encoded.rows, None
    async with model.text_work.reserve(memory_of(prompt.text)):
        ids = await fitting_ids(model, prompt, "messages", False, inline=len(prompt.text) <= SHORT_TEXT, cut=cut)
    ids = model.tokenizer.chat_prompt(ids, add_special_tokens)
    if earlier_ids:
        before = len(model.tokenizer.surrounding.before)
        begins = before and tuple(ids[:before]) == model.tokenizer.surrounding.before
        ids = [*earlier_ids, *(ids[before:] if begins else ids)]
    if rows:
        from homenode.server.core.media.media_prompts import placed_rows

        check_prompt(model, ids, "messages")
        return EncodedPrompt(ids, rows=placed_rows(ids, rows, len(earlier_ids)))
    return cut_prompt(model, ids, "messages", cut, max_tokens)


def cut_prompt(
    model: ServedModel, ids: list[int], param: str, cut: PromptCut | None, max_tokens: int | None
) -> EncodedPrompt:
    """The prompt of these tokens; one that is too long as `cut` says. Raises ApiError 400 as `check_prompt`."""
    kept = ids
    if cut is not None:
        before, most = model.tokenizer.surrounding.before, most_prompt_tokens(model)
        begins = len(before) if tuple(ids[: len(before)]) == before else 0
        context = model.ready.max_model_len
        kept = cut_tokens(ids, cut, most=most, context=context, max_tokens=max_tokens, begins=begins)
    check_prompt(model, kept, param)
    return EncodedPrompt(kept, left_out=len(ids) - len(kept))


def check_template_values(values: Mapping[str, Any] | None) -> None:
    """Raises ApiError 400 where a client's values for its chat template have a name of the conversation itself."""
    if taken := sorted(_OWN_VALUES & (values or {}).keys()):
        raise ApiError(
            400, f"`chat_template_kwargs` may not set `{taken[0]}`", param="chat_template_kwargs", code="invalid_value"
        )


def check_ending(continue_final: bool | None, add_generation_prompt: bool | None) -> None:
    """Raises ApiError 400 where a prompt is to end within the last message and behind it."""
    if continue_final and add_generation_prompt:
        raise ApiError(
            400,
            "`continue_final_message` and `add_generation_prompt` exclude each other",
            param="continue_final_message",
            code="invalid_value",
        )


async def chat_text(
    model: ServedModel,
    conversation: TemplateConversation,
    *,
    template_kwargs: Mapping[str, Any] | None = None,
    add_generation_prompt: bool | None = None,
    continue_final: bool = False,
) -> PromptText:
    """Return what the chat template makes of a conversation, and of the tools that are offered in it. `continue_final`:
    the prompt ends with the text of the last message.
    """
    check_template_values(template_kwargs)
    check_ending(continue_final, add_generation_prompt)

    def work() -> PromptText:
        hidden = None if model.config.special_tokens_in_content else model.tokenizer.hidden_names()
        hide = _as_it_is if hidden is None else hidden.hide
        values = hide(dict(template_kwargs or {}))
        follows = add_generation_prompt is not False and not continue_final
        end = f"[{secrets.token_hex(16)}]" if continue_final else ""
        until = time.monotonic() + _LONGEST_RENDERINGS_S
        made = conversation_prompt(
            conversation,
            lambda messages, tools: model.tokenizer.render_chat(
                messages, add_generation_prompt=follows, **values, **({} if tools is None else {"tools": tools})
            ),
            hide=hide,
            end=end,
            goes_on=lambda: time.monotonic() < until,
        )
        return PromptText(_up_to(made.text, end), hidden, made.left_out)

    return await asyncio.to_thread(work)  # a template is a program, and may wait for a process of its own


async def fitting_ids(
    model: ServedModel,
    prompt: PromptText,
    param: str,
    add_special_tokens: bool,
    *,
    inline: bool = False,
    most: int | None = None,
    cut: PromptCut | None = None,
) -> list[int]:
    """Token ids of a text that fits the context. Raises ApiError 400 for another one as early as that is known.

    `inline`: it is short, so that it is encoded at once. `most`: see `encode_prompts`. `cut`: the caller cuts one that
    is too long for the context.
    """
    text, hidden = prompt.text, prompt.hidden
    longest = most_prompt_tokens(model) if cut is None else _MOST_PROMPT_TOKENS
    behind = model.tokenizer.surrounding.after if add_special_tokens and most is not None else ()
    if hidden is None or not hidden.any:
        if inline:
            return beginning(model.tokenizer.encode(text, add_special_tokens), most, behind)
        if (
            most is None
            and (fewest := await model.text_work.run(lambda: model.tokenizer.fewest_tokens(text))) > longest
        ):
            raise _too_long(model, param, f"at least {format_count(fewest, 'token')}")
    ids: list[int] = []
    encoded = model.tokenizer.encode_pieces(text, add_special_tokens, hidden)
    async with aclosing(model.text_work.each(encoded)) as pieces:
        async for piece in pieces:
            if most is not None and len(ids) > most:
                break
            if most is None and piece and len(ids) > longest:
                raise _too_long(model, param, f"at least {format_count(len(ids), 'token')}")
            ids += piece
    return beginning(ids, most, behind)


def most_prompt_tokens(model: ServedModel) -> int:
    """Tokens of the longest prompt: where text is generated, there is room for one more."""
    return model.ready.max_model_len - (model.ready.pooling is None)


def check_token_ids(model: ServedModel, ids: list[int], param: str) -> None:
    """Raises ApiError 400 for an id outside the vocabulary."""
    # Other threads run between two slices.
    highest = max((max(ids[at : at + _SLICE]) for at in range(0, len(ids), _SLICE)), default=-1)
    if highest >= model.ready.vocab_size:
        place = next(i for i, token in enumerate(ids) if token >= model.ready.vocab_size)
        raise ApiError(
            400,
            f"`{param}[{place}]` is token id {ids[place]}; this model's ids go from 0 to {model.ready.vocab_size - 1}",
            param=param,
            code="invalid_value",
        )


def check_prompt(model: ServedModel, ids: list[int], param: str) -> None:
    """Raises ApiError 400 for a prompt without tokens, or with too many to leave room for one more."""
    if not ids:
        raise ApiError(
            400,
            f"`{param}` has no tokens, and none that begins a text is added; give at least one",
            param=param,
            code="invalid_value",
        )
    if len(ids) > most_prompt_tokens(model):
        raise _too_long(model, param, format_count(len(ids), "token"))


def check_prompt_tokens(tokens: int, param: str, n: int = 1) -> None:
    """Raises ApiError 400 when the prompts in the field `param`, each `n` times, have too many tokens together."""
    if tokens * n > _MOST_PROMPT_TOKENS:
        asked = f"`{param}` has" if n == 1 else f"`{param}` and `n` ask for"
        raise ApiError(
            400,
            f"{asked} {format_count(tokens * n, 'prompt token')} or more; at most {_MOST_PROMPT_TOKENS} are taken in "
            "one request",
            param=param if n == 1 else "n",
            code="invalid_value",
        )


def _too_long(model: ServedModel, param: str, tokens: str) -> ApiError:
    """Return the error in the words of the field, by which programs know to shorten a conversation."""
    most, pools = model.ready.max_model_len, model.ready.pooling is not None
    remedy = ", or let `truncate_prompt_tokens` take the beginning" if pools else ""
    return ApiError(
        400,
        f"This model's maximum context length is "
        f"{format_count(most, 'token')}{'' if pools else ', one of them for the answer'} "
        f"(--max-model-len). `{param}` has {tokens}; shorten it{remedy}",
        param=param,
        code=CONTEXT_LENGTH_EXCEEDED,
    )


def _as_it_is(value: Any) -> Any:
    return value


def _up_to(text: str, end: str) -> str:
    """The prompt up to a mark that stands at the end of the last message's text, where the template would close the
    turn. Raises ApiError 400 where it is not shown.
    """
    if not end:
        return text
    before, found, _after = text.rpartition(end)
    if not found:
        raise ApiError(
            400,
            "the chat template does not show the last message, so it cannot be continued",
            param="continue_final_message",
            code="invalid_value",
        )
    return before
