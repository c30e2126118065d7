"""The two paths at which decisions are asked for."""

from __future__ import annotations

from typing import Any

from homenode.server.apis.decisions.questions import DecisionAnswers, DecisionsRequest, decisions
from homenode.server.apis.decisions.systemone import SystemAnswers, SystemOneRequest, systemone
from homenode.server.apis.decisions.wording import DIGITS, LETTERS, NO, YES
from homenode.server.core.api import POST_FAILURES, Api, Operation
from homenode.server.core.pooling import generates
from homenode.server.core.state import ServerState
from homenode.server.models.served_model import ServedModel


def _decides(model: ServedModel) -> bool:
    encode, labels = model.tokenizer.encode, (*LETTERS, *DIGITS, YES, NO)
    template = generates(model) and model.formats.of(with_tools=False).template
    return bool(template) and all(len(encode(label, False)) == 1 for label in labels)


def _tighten(components: dict[str, Any], state: ServerState) -> None:
    named: dict[str, Any] = {"anyOf": [{"enum": list(state.limits.names)}, {"type": "null"}], "default": None}
    for kind in (SystemOneRequest, DecisionsRequest):
        components[kind.__name__]["properties"]["model"] = named


API = Api(
    operations=(
        Operation(
            path="/v1/systemone",
            method="post",
            summary="Probabilities of fixed answers (vLLM).",
            handler=systemone,
            answer=SystemAnswers,
            body=SystemOneRequest,
            failures=POST_FAILURES,
            admits=True,
            documented=_decides,
        ),
        Operation(
            path="/v1/decisions",
            method="post",
            summary="Probabilities of fixed answers (OpenAI).",
            handler=decisions,
            answer=DecisionAnswers,
            body=DecisionsRequest,
            failures=POST_FAILURES,
            admits=True,
            documented=_decides,
        ),
    ),
    tighten=_tighten,
)
