"""POST /v1/score and POST /v1/rerank: how near texts are to each other, and the nearest first."""

from __future__ import annotations

import secrets
import time
from typing import Any

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from homenode.server.apis.scoring.request import (
    HINTS,
    RankedDocument,
    RankedList,
    RerankDocument,
    RerankRequest,
    Score,
    ScoreList,
    ScoreRequest,
    ScoreUsage,
)
from homenode.server.core.api import POST_FAILURES, Api, Operation
from homenode.server.core.pooling import pools
from homenode.server.core.pooling_openapi import tighten_kept_tokens
from homenode.server.core.scores.scoring import Scores, TextsToScore, score_texts
from homenode.server.core.state import ServerState
from homenode.server.http.decoding import decode_as
from homenode.server.http.endpoint import json_response
from homenode.server.http.exchange import unless_gone
from homenode.server.models.model_table import read_for_model

_decode_score = decode_as(ScoreRequest, HINTS)
_decode_rerank = decode_as(RerankRequest, HINTS)


async def score(state: ServerState, request: Request) -> Response:
    """The scores of pairs."""
    body, asked_model = await read_for_model(state, request, _decode_score)
    first, second = ([text] if isinstance(text, str) else text for text in (body.text_1, body.text_2))
    asked = TextsToScore(
        first, second, "text_1", "text_2", body.truncate_prompt_tokens, body.priority, body.activation is False
    )
    found = await unless_gone(request.receive, score_texts(asked_model, asked))
    data = [Score(index=number, score=value) for number, value in enumerate(found.values)]
    id, created = f"score-{secrets.token_hex(12)}", int(time.time())
    return json_response(ScoreList(id=id, created=created, model=asked_model.name, data=data, usage=_usage(found)))


async def rerank(state: ServerState, request: Request) -> Response:
    """The documents that are nearest to a query."""
    body, asked_model = await read_for_model(state, request, _decode_rerank)
    texts = [each if isinstance(each, str) else each.text for each in body.documents]
    asked = TextsToScore(
        [body.query],
        texts,
        "query",
        "documents",
        body.truncate_prompt_tokens,
        body.priority,
        body.activation is False,
    )
    found = await unless_gone(request.receive, score_texts(asked_model, asked))
    order = sorted(range(len(texts)), key=lambda number: -found.values[number])
    shown = body.return_documents is not False
    results = [
        RankedDocument(
            index=number,
            document=RerankDocument(texts[number]) if shown else UNSET,
            relevance_score=found.values[number],
        )
        for number in order[: body.top_n or None]
    ]
    return json_response(
        RankedList(
            id=f"rerank-{secrets.token_hex(12)}",
            model=asked_model.name,
            results=results,
            usage=_usage(found),
        )
    )


def _usage(found: Scores) -> ScoreUsage:
    return ScoreUsage(found.prompt_tokens, found.prompt_tokens)


def _tighten(components: dict[str, Any], state: ServerState) -> None:
    texts = {"type": "array", "items": {"type": "string"}, "minItems": 1}
    named: dict[str, Any] = {"anyOf": [{"enum": list(state.limits.names)}, {"type": "null"}], "default": None}
    for kind in (ScoreRequest, RerankRequest):
        schema = components[kind.__name__]
        schema["properties"]["model"] = named
        tighten_kept_tokens(schema, state.limits)
    properties = components[ScoreRequest.__name__]["properties"]
    properties["text_1"] = {"anyOf": [{"type": "string"}, {**texts, "maxItems": 1}]}
    properties["text_2"] = {"anyOf": [{"type": "string"}, texts]}
    components[RerankRequest.__name__]["properties"]["documents"]["minItems"] = 1


_SCORED = {"answer": ScoreList, "body": ScoreRequest, "handler": score, "summary": "How near texts are."}
_RANKED = {"answer": RankedList, "body": RerankRequest, "handler": rerank, "summary": "The nearest documents first."}
_PATHS: dict[str, dict[str, Any]] = {
    "/v1/score": _SCORED,
    "/score": _SCORED,
    "/v1/rerank": _RANKED,
    "/rerank": _RANKED,
    "/v2/rerank": _RANKED,
}
API = Api(
    operations=tuple(
        Operation(path=path, method="post", failures=POST_FAILURES, admits=True, documented=pools, **what)
        for path, what in _PATHS.items()
    ),
    tighten=_tighten,
)
