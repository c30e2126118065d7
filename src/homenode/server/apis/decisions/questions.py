"""POST /v1/decisions: an input and a list of questions about it, as OpenAI has them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from homenode.server.apis.decisions.strict_body import decode_strictly, refuse
from homenode.server.apis.decisions.wording import (
    DIGITS,
    LETTERS,
    NO,
    YES,
    choice_question,
    level_question,
    yes_or_no_question,
)
from homenode.server.core.media.content import media_kind, refuse_media
from homenode.server.core.scores.decisions import (
    MOST_QUESTIONS,
    DecisionRequest,
    LabelDecision,
    LabelledQuestion,
    decide,
)
from homenode.server.core.state import ServerState
from homenode.server.http.endpoint import json_response
from homenode.server.http.exchange import unless_gone
from homenode.server.models.model_table import read_for_model

_TEXT_PARTS = ("input_text", "text")


class DecisionPart(Struct, kw_only=True):
    """A part of a message, of which texts are taken."""

    type: str
    text: str | None = None


class DecisionMessage(Struct, forbid_unknown_fields=True, kw_only=True):
    """A message of the user."""

    role: Literal["user"]
    content: str | list[DecisionPart]
    type: Literal["message"] = "message"


class DecisionOption(Struct, forbid_unknown_fields=True, kw_only=True):
    """An option to choose."""

    value: str | bool
    description: str | None = None


class DecisionLevel(Struct, forbid_unknown_fields=True, kw_only=True):
    """A level of a scale."""

    label: str
    description: str | None = None


class PredicateQuestion(Struct, forbid_unknown_fields=True, tag_field="type", tag="predicate", kw_only=True):
    """A question whose answer is the probability that it is true."""

    instructions: str
    name: str | None = None


class ChoiceQuestion(Struct, forbid_unknown_fields=True, tag_field="type", tag="choice", kw_only=True):
    """A question whose answer is one of several options."""

    instructions: str
    choices: Annotated[list[DecisionOption], Meta(min_length=2, max_length=len(LETTERS))]
    name: str | None = None


class ScoreQuestion(Struct, forbid_unknown_fields=True, tag_field="type", tag="score", kw_only=True):
    """A question whose answer is a level, from 0 on."""

    instructions: str
    levels: Annotated[list[DecisionLevel], Meta(min_length=2, max_length=len(DIGITS))]
    name: str | None = None


DecisionQuestion = PredicateQuestion | ChoiceQuestion | ScoreQuestion


class DecisionsRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /v1/decisions. The fields behind `questions` are those of /v1/systemone."""

    input: str | Annotated[list[DecisionMessage], Meta(min_length=1)]
    questions: Annotated[list[DecisionQuestion], Meta(min_length=1, max_length=MOST_QUESTIONS)]
    model: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: Annotated[str, Meta(max_length=128)] | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    return_prompt_token_ids: bool | None = None


class DecisionInputDetails(Struct):
    """Tokens of the prompts that were found in the prefix cache."""

    cached_tokens: int


class DecisionOutputDetails(Struct):
    """Tokens of thoughts; a decision has none."""

    reasoning_tokens: int = 0


class DecisionsUsage(Struct, kw_only=True):
    """Tokens of all prompts, and one for each answer."""

    input_tokens: int
    input_tokens_details: DecisionInputDetails
    output_tokens: int
    output_tokens_details: DecisionOutputDetails
    total_tokens: int


class DecisionAnswers(Struct, kw_only=True):
    """Answer of POST /v1/decisions, in the order of the questions."""

    model: str
    answers: list[dict[str, Any]]
    usage: DecisionsUsage
    prompt_token_ids: list[list[int]] | UnsetType = UNSET
    label_token_ids: list[list[int]] | UnsetType = UNSET


_decode = decode_strictly(DecisionsRequest)


async def decisions(state: ServerState, request: Request) -> Response:
    """Answer the questions."""
    body, asked_model = await read_for_model(state, request, _decode)
    asked = DecisionRequest(
        about=_about(body.input),
        questions=[_question(question, f"questions[{number}]") for number, question in enumerate(body.questions)],
        template_values=body.chat_template_kwargs or {},
        priority=body.priority,
        cache_salt=body.cache_salt or "",
    )
    made = await unless_gone(request.receive, decide(asked_model, asked))
    shown, usage = bool(body.return_prompt_token_ids), made.usage
    return json_response(
        DecisionAnswers(
            model=asked_model.name,
            answers=[_answer(*each) for each in zip(body.questions, made.decisions, strict=True)],
            usage=DecisionsUsage(
                input_tokens=usage.prompt_tokens,
                input_tokens_details=DecisionInputDetails(usage.cached_tokens),
                output_tokens=usage.completion_tokens,
                output_tokens_details=DecisionOutputDetails(),
                total_tokens=usage.prompt_tokens + usage.completion_tokens,
            ),
            prompt_token_ids=[list(each.prompt_ids) for each in made.decisions] if shown else UNSET,
            label_token_ids=[list(each.label_ids) for each in made.decisions] if shown else UNSET,
        )
    )


def _about(given: str | list[DecisionMessage]) -> str:
    """The texts of the input, one behind another. Raises ApiError 400 for a part that is no text."""
    if isinstance(given, str):
        return given
    texts = []
    for number, message in enumerate(given):
        if isinstance(message.content, str):
            texts.append(message.content)
            continue
        for place, part in enumerate(message.content):
            at = f"input[{number}].content[{place}]"
            if part.type not in _TEXT_PARTS or part.text is None:
                if kind := media_kind(part.type):
                    refuse_media(kind, at)
                raise refuse(at, f"is of type {part.type[:100]!r}; give parts of type input_text, with a text")
            texts.append(part.text)
    return "\n\n".join(texts)


def _question(question: DecisionQuestion, place: str) -> LabelledQuestion:
    asked = question.instructions
    match question:
        case PredicateQuestion():
            return yes_or_no_question(asked, {}, place, (NO, YES))
        case ChoiceQuestion(choices=choices):
            if len({(type(choice.value), choice.value) for choice in choices}) < len(choices):
                raise refuse(f"{place}.choices", "has the same value twice; give distinct choices")
            names = [_shown(choice.value) for choice in choices]
            return choice_question(asked, names, [choice.description for choice in choices], place)
        case ScoreQuestion(levels=levels):
            names = [level.label for level in levels]
            return level_question(asked, names, [level.description for level in levels], place)


def _shown(value: str | bool) -> str:
    return value if isinstance(value, str) else "true" if value else "false"


def _answer(question: DecisionQuestion, decision: LabelDecision) -> dict[str, Any]:
    named: dict[str, Any] = {"type": question.__struct_config__.tag, "name": question.name}
    each = decision.probabilities
    match question:
        case PredicateQuestion():
            return {**named, "probability": each[-1], "confidence": decision.confidence}
        case ChoiceQuestion(choices=choices):
            values = [choice.value for choice in choices]
            found = [{"value": value, "probability": one} for value, one in zip(values, each, strict=True)]
            answer: Any = values[decision.likeliest]
            return {**named, "choice": answer, "probabilities": found, "confidence": decision.confidence}
        case ScoreQuestion(levels=levels):
            found = [
                {"value": number, "label": level.label, "probability": one}
                for number, (level, one) in enumerate(zip(levels, each, strict=True))
            ]
            answer = decision.expected
            return {**named, "score": answer, "probabilities": found, "confidence": decision.confidence}
