"""Questions with a fixed set of answers: the probability of each, from the logits behind the question.

All questions of a request are computed together, each as a prompt of its own. What they have in common stands first, so
that it is computed once. The answers are labels of one token; of each the log-probability is asked of the engine, and a
row's logits do not depend on what shares the batch: so neither does an answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from homenode.chat.syntax.parts import ReasoningDelta
from homenode.engine.request import TokenLogprob
from homenode.sampling import SamplingParams
from homenode.server.core.choices.message_reader import MessageReader
from homenode.server.core.conversation import ConversationRequest, conversation_text
from homenode.server.core.generation import TokenUsage
from homenode.server.core.prompts import EncodedPrompt, PromptText, encode_chat_text
from homenode.server.core.request import GenerationRequest, begin, check_limits
from homenode.server.http.failures import ApiError
from homenode.server.models.served_model import AskedModel, ServedModel

MOST_QUESTIONS = 64
_THOUGHTS = ("enable_thinking", "thinking", "thinking_budget", "reasoning_effort", "thinking_mode")
_OFF = (False, None, 0, "none", "disabled", "off", "no_think")
# The likeliest token, by the logits as they are.
_PLAIN = SamplingParams(
    temperature=0.0, repetition_penalty=1.0, top_k=0, top_p=1.0, min_p=0.0, logprobs=0, ignore_eos=True
)
_TAIL = 64  # characters of a prompt's end, behind which labels are encoded


@dataclass(frozen=True)
class LabelledQuestion:
    """A question. `text`: all that the model sees of it, the labels and what they mean included. `labels`: what the
    model may answer, each different from the others. `place`: of the question in the body, such as `questions[2]`.
    """

    text: str
    labels: Sequence[str]
    place: str


@dataclass(frozen=True)
class DecisionRequest:
    """Questions about one text, at most `MOST_QUESTIONS`. `template_values`: what a request gives its chat template."""

    about: str
    questions: Sequence[LabelledQuestion]
    template_values: Mapping[str, Any]
    priority: int | None = None
    cache_salt: str = ""


@dataclass(frozen=True)
class LabelDecision:
    """The answer to a question. `probabilities`: of the labels, in their order, which sum to 1. `label_mass`: the
    probability that all labels have together among all tokens. `is_label`: the likeliest token is a label.
    """

    probabilities: Sequence[float]
    label_mass: float
    is_label: bool
    prompt_ids: Sequence[int]
    label_ids: Sequence[int]

    @property
    def confidence(self) -> float:
        """The probability of the likeliest label among all tokens."""
        return max(self.probabilities) * self.label_mass

    @property
    def likeliest(self) -> int:
        """The number of the likeliest label."""
        return self.probabilities.index(max(self.probabilities))

    @property
    def expected(self) -> float:
        """The number of the label that is to be expected, where labels are levels from 0 on."""
        return sum(level * probability for level, probability in enumerate(self.probabilities))


@dataclass(frozen=True)
class Decisions:
    """The answers in the order of the questions, and the tokens that they took."""

    decisions: Sequence[LabelDecision]
    usage: TokenUsage


async def decide(asked_model: AskedModel, asked: DecisionRequest) -> Decisions:
    """Answer all questions. Raises ApiError 400 for a model that cannot be asked, and for prompts that do not fit."""
    model = asked_model.model
    _check(model, asked)
    prompts: list[EncodedPrompt] = []
    labels: list[tuple[int, ...]] = []
    for question in asked.questions:
        text = await _prompt_text(model, asked, question)
        prompts.append(await encode_chat_text(model, text))
        labels.append(_label_ids(model, text, question))
    generation = await begin(
        asked_model,
        GenerationRequest(
            prompts=prompts,
            sampling=_PLAIN,
            max_tokens=1,
            logprob_token_ids=labels,
            priority=asked.priority,
            cache_salt=asked.cache_salt,
        ),
    )
    found: dict[int, tuple[int, TokenLogprob]] = {}
    async with aclosing(generation.events()) as events:
        async for event in events:
            for scored in event.scored:
                if scored.logprob is not None:
                    found[event.choice] = (scored.token, scored.logprob)
    each = enumerate(zip(prompts, labels, strict=True))
    made = [_decision(prompt.ids, ids, *found[number]) for number, (prompt, ids) in each]
    return Decisions(made, generation.usage())


def _check(model: ServedModel, asked: DecisionRequest) -> None:
    for name in _THOUGHTS:
        if asked.template_values.get(name) not in _OFF:
            text = f"`chat_template_kwargs` asks for thoughts (`{name}`); a decision is one token, without thinking"
            raise ApiError(400, text, param="chat_template_kwargs", code="invalid_value")
    check_limits(model, len(asked.questions), SamplingParams())
    if not model.formats.of(with_tools=False).template:
        text = "the served model has no chat template, so it cannot be asked for decisions; give one by --chat-template"
        raise ApiError(400, text, param="model", code="unsupported_model")


async def _prompt_text(model: ServedModel, asked: DecisionRequest, question: LabelledQuestion) -> PromptText:
    """The conversation in which one question is asked. Raises ApiError 400 where the model thinks in any case."""
    content = f"{asked.about}\n\n{question.text}" if asked.about else question.text
    request = ConversationRequest(
        messages=[{"role": "user", "content": content}], thinking=False, template_kwargs=asked.template_values
    )
    text = await conversation_text(model, request)
    formats = model.formats.of(with_tools=False)
    if formats.has_thoughts:
        parser = MessageReader.of(formats.chosen, text.text, ())
        if parser.opens_with(ReasoningDelta):
            told = "the served model answers with thoughts first, which its chat template cannot switch off"
            raise ApiError(400, f"{told}; decisions need an answer at once", param="model", code="unsupported_model")
    return text


def _label_ids(model: ServedModel, prompt: PromptText, question: LabelledQuestion) -> tuple[int, ...]:
    """The token of each label, as it is written behind the prompt. Raises ApiError 400 where one has no such token."""
    tail = prompt.text[-_TAIL:]
    before = model.tokenizer.encode(tail, False)
    found = []
    for label in question.labels:
        behind = model.tokenizer.encode(tail + label, False)
        if behind[: len(before)] != before or len(behind) != len(before) + 1:
            behind = model.tokenizer.encode(label, False)
            if len(behind) != 1:
                text = f"the label {label!r} is not one token of the served model, so it cannot be asked for decisions"
                raise ApiError(400, text, param=question.place, code="unsupported_model")
        found.append(behind[-1])
    if len(set(found)) < len(found):
        text = "two labels are the same token of the served model, so it cannot be asked for decisions"
        raise ApiError(400, text, param=question.place, code="unsupported_model")
    return tuple(found)


def _decision(prompt_ids: Sequence[int], label_ids: Sequence[int], token: int, logprob: TokenLogprob) -> LabelDecision:
    known = dict(logprob.top)
    values = [known[label] for label in label_ids]
    top = max(values)
    weights = [math.exp(value - top) for value in values]
    whole = math.fsum(weights)
    probabilities = [weight / whole for weight in weights]
    mass = min(1.0, math.fsum(map(math.exp, values)))
    return LabelDecision(probabilities, mass, token in label_ids, prompt_ids, label_ids)
