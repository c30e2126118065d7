"""POST /v1/systemone: a state and questions about it by their names, as vLLM has them."""

from __future__ import annotations

import json
import secrets
import time
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from homenode.server.apis.decisions.strict_body import decode_strictly
from homenode.server.apis.decisions.wording import (
    DIGITS,
    LETTERS,
    NO,
    YES,
    choice_question,
    level_question,
    yes_or_no_question,
)
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


class SystemChoice(Struct, forbid_unknown_fields=True, tag_field="type", tag="choice", kw_only=True):
    """One of several options. `criteria`: what each means; null where its name says it."""

    instructions: str | None = None
    criteria: Annotated[dict[str, str | None], Meta(min_length=2, max_length=len(LETTERS))]


class SystemNoul(Struct, forbid_unknown_fields=True, tag_field="type", tag="noul", kw_only=True):
    """A question that is answered by yes or no. `criteria`: under `true` and `false`, when that is the answer."""

    instructions: str | None = None
    criteria: dict[Literal["true", "false", "yes", "no"], str | None] | None = None


class SystemScore(Struct, forbid_unknown_fields=True, tag_field="type", tag="score", kw_only=True):
    """A level on a scale. `criteria`: what the levels mean, from 0 on."""

    instructions: str | None = None
    criteria: Annotated[list[str], Meta(min_length=2, max_length=len(DIGITS))]


SystemQuestion = SystemChoice | SystemNoul | SystemScore


class SystemOneRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /v1/systemone. `state`: a text, or JSON, that the questions are about. `instructions`: stand before
    it. `return_prompt_token_ids`: the answer has the prompts, and the tokens of the labels.
    """

    state: Any
    questions: Annotated[dict[str, SystemQuestion], Meta(min_length=1, max_length=MOST_QUESTIONS)]
    model: str | None = None
    instructions: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: Annotated[str, Meta(max_length=128)] | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    return_prompt_token_ids: bool | None = None


class SystemUsage(Struct):
    """Tokens of all prompts, and one for each answer."""

    input_tokens: int
    output_tokens: int


class SystemDiagnostics(Struct):
    """How far the model answered by a label at all."""

    label_mass: float
    argmax_is_label: bool


class SystemAnswers(Struct, kw_only=True):
    """Answer of POST /v1/systemone; `answers` and `diagnostics` by the names of the questions."""

    id: str
    object: Literal["structured_decision"] = "structured_decision"
    created: int
    model: str
    answers: dict[str, dict[str, Any]]
    usage: SystemUsage
    diagnostics: dict[str, SystemDiagnostics]
    prompt_token_ids: dict[str, list[int]] | UnsetType = UNSET
    label_token_ids: dict[str, list[int]] | UnsetType = UNSET


_decode = decode_strictly(SystemOneRequest)


async def systemone(state: ServerState, request: Request) -> Response:
    """Answer the questions."""
    body, asked_model = await read_for_model(state, request, _decode)
    about = body.state if isinstance(body.state, str) else json.dumps(body.state, ensure_ascii=False)
    asked = DecisionRequest(
        about=f"{body.instructions}\n\n{about}" if body.instructions else about,
        questions=[_question(question, f"questions.{name}") for name, question in body.questions.items()],
        template_values=body.chat_template_kwargs or {},
        priority=body.priority,
        cache_salt=body.cache_salt or "",
    )
    made = await unless_gone(request.receive, decide(asked_model, asked))
    by_name = dict(zip(body.questions, made.decisions, strict=True))
    shown = bool(body.return_prompt_token_ids)
    return json_response(
        SystemAnswers(
            id=f"decision-{secrets.token_hex(12)}",
            created=int(time.time()),
            model=asked_model.name,
            answers={name: _answer(body.questions[name], decision) for name, decision in by_name.items()},
            usage=SystemUsage(made.usage.prompt_tokens, made.usage.completion_tokens),
            diagnostics={name: SystemDiagnostics(each.label_mass, each.is_label) for name, each in by_name.items()},
            prompt_token_ids={name: list(each.prompt_ids) for name, each in by_name.items()} if shown else UNSET,
            label_token_ids={name: list(each.label_ids) for name, each in by_name.items()} if shown else UNSET,
        )
    )


def _question(question: SystemQuestion, place: str) -> LabelledQuestion:
    match question:
        case SystemNoul(criteria=criteria):
            told = {YES if name in ("true", YES) else NO: text for name, text in (criteria or {}).items()}
            return yes_or_no_question(question.instructions, told, place)
        case SystemChoice(criteria=options):
            return choice_question(question.instructions, list(options), list(options.values()), place)
        case SystemScore(criteria=levels):
            return level_question(question.instructions, levels, [None] * len(levels), place)


def _answer(question: SystemQuestion, decision: LabelDecision) -> dict[str, Any]:
    found: dict[str, Any] = {"type": question.__struct_config__.tag}
    match question:
        case SystemNoul():
            names = [YES, NO]
            found["noul"] = decision.probabilities[0]
        case SystemChoice(criteria=options):
            names = list(options)
            found["choice"] = names[decision.likeliest]
        case SystemScore(criteria=levels):
            names = list(DIGITS[: len(levels)])
            found["score"] = decision.expected
            found["legend"] = dict(zip(names, levels, strict=True))
    found["probabilities"] = dict(zip(names, decision.probabilities, strict=True))
    found["confidence"] = decision.confidence
    return found
