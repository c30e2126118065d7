"""GET /overview: what the page shows, for whoever wants it as JSON. The figures are those of /metrics, the findings
those of `homenode verify`.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from homenode.server.core.api import Operation
from homenode.server.core.state import ServerState
from homenode.server.page.overview_answer import Overview


async def overview(state: ServerState, request: Request) -> Response:
    """The state of everything, as the page shows it."""
    if state.overviews is None:
        from homenode.server.page.overview_work import OverviewWork  # no start waits for what it needs

        state.overviews = OverviewWork(state)
    return await state.overviews.answer(request)


OPERATION = Operation(
    path="/overview",
    method="get",
    summary="The machine, the models and their requests now, and the last hour.",
    handler=overview,
    answer=Overview,
    failures=(400, 401, 405, 500),
    query={"known": {"type": "string"}, "since": {"type": "number", "minimum": 0}},
)
