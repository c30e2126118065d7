"""POST /plan: the plan of a recorded host by a strategy, as `homenode plan --from FILE --strategy S --json` has it,
with the host as the page draws it.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from homenode.host.plan.strategy import Strategy
from homenode.server.core.api import POST_FAILURES, Operation
from homenode.server.core.state import ServerState
from homenode.server.http.decoding import FieldHints, decode_as
from homenode.server.http.endpoint import json_response
from homenode.server.http.exchange import read_json


class PlanRequest(Struct, forbid_unknown_fields=True):
    """Body of /plan. `strategy`: as of `homenode plan`. `host`: the text of a recording (`homenode host record`), or a
    host in one line such as 2s/4n/64c/smt2; left out: this machine. `model`: a served one, whose weights are planned,
    too, as `homenode plan --weights` does.
    """

    strategy: Strategy
    host: str | None = None
    model: str | None = None


class PlannedHost(Struct):
    """Answer of /plan: what `homenode plan --json` prints, and the host as sockets, nodes, caches and cores. `weights`:
    of the model, the policy, the reason with the speed that is predicted of each, and bytes by node.
    """

    plan: dict[str, Any]
    host: dict[str, Any]
    weights: dict[str, Any] | UnsetType = UNSET


_decode = decode_as(PlanRequest, FieldHints({"strategy": f"there are {', '.join(Strategy)}"}, {}))


async def plan(state: ServerState, request: Request) -> Response:
    """Plan for a recorded host; nothing is changed."""
    asked = await read_json(state, request, _decode)
    model = None if asked.model is None else state.models.find(asked.model).model.ready.model
    return json_response(await state.text_work.run(lambda: _planned(asked, model)))


def _planned(asked: PlanRequest, model: str | None) -> PlannedHost:
    from homenode.host.topology.machine_map import machine_map  # no start waits for what plans are made with
    from homenode.server.page.planning import plan_text

    host, made = plan_text(asked.host, asked.strategy.value)
    answer = PlannedHost(made.to_dict(), machine_map(host))
    if model is not None:
        from homenode.engine.api.planned_weights import weight_summary

        answer.weights = weight_summary(host, model)
    return answer


OPERATION = Operation(
    path="/plan",
    method="post",
    summary="Who would run where on a recorded host, as `homenode plan` says it.",
    handler=plan,
    body=PlanRequest,
    answer=PlannedHost,
    failures=POST_FAILURES,
)
