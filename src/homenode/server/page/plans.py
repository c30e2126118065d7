"""POST /plan: the plan of a recorded host by a strategy, as `homenode plan --from FILE --strategy S --json` has it,
with the host as the page draws it.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
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
    host in one line such as 2s/4n/64c/smt2; left out: this machine.
    """

    strategy: Strategy
    host: str | None = None


class PlannedHost(Struct):
    """Answer of /plan: what `homenode plan --json` prints, and the host as sockets, nodes, caches and cores."""

    plan: dict[str, Any]
    host: dict[str, Any]


_decode = decode_as(PlanRequest, FieldHints({"strategy": f"there are {', '.join(Strategy)}"}, {}))


async def plan(state: ServerState, request: Request) -> Response:
    """Plan for a recorded host; nothing is changed."""
    asked = await read_json(state, request, _decode)
    return json_response(await state.text_work.run(lambda: _planned(asked)))


def _planned(asked: PlanRequest) -> PlannedHost:
    from homenode.host.topology.machine_map import machine_map  # no start waits for what plans are made with
    from homenode.server.page.planning import plan_text

    host, made = plan_text(asked.host, asked.strategy.value)
    return PlannedHost(made.to_dict(), machine_map(host))


OPERATION = Operation(
    path="/plan",
    method="post",
    summary="Who would run where on a recorded host, as `homenode plan` says it.",
    handler=plan,
    body=PlanRequest,
    answer=PlannedHost,
    failures=POST_FAILURES,
)
