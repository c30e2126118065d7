"""What the page asks of a server besides the APIs, and its files."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from homenode.server.core.api import Api
from homenode.server.http.admission import RequestAdmission
from homenode.server.http.config import HttpConfig
from homenode.server.http.endpoint import Endpoint
from homenode.server.http.failures import ApiError
from homenode.server.page import overview, plans
from homenode.server.page.files import FOLDER, page_files

API = Api(operations=(overview.OPERATION, plans.OPERATION))


def page_routes(state: RequestAdmission, config: HttpConfig) -> list[Route]:
    """The route of the page's files; none where there is no page."""

    async def file(state: RequestAdmission, request: Request) -> Response:
        name = request.path_params["name"]
        found = page_files(config.root_path).file(name, request)
        if found is None:
            raise ApiError(404, f"the page has no file {name[:80]!r}", code="unknown_path")
        return found

    return [Route(f"{FOLDER}{{name}}", Endpoint(state, file), methods=["GET"])] if config.ui else []
