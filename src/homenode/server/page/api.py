"""What the page asks of a server besides the APIs, and its files."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from homenode.server.core.api import Api
from homenode.server.http.admission import RequestAdmission
from homenode.server.http.config import HttpConfig
from homenode.server.http.endpoint import Endpoint
from homenode.server.http.failures import ApiError
from homenode.server.page import overview, plans
from homenode.server.page.files import FOLDER, REFERENCE, PageFiles, page_files, reference_files

API = Api(operations=(overview.OPERATION, plans.OPERATION))


def page_routes(state: RequestAdmission, config: HttpConfig) -> list[Route]:
    """The routes of the page's files, which are not there without it, and of the page of the API."""

    async def reference(state: RequestAdmission, request: Request) -> Response:
        return reference_files(config.root_path).page(request)

    routes = [
        Route(REFERENCE, Endpoint(state, reference), methods=["GET"]),
        _file_route(state, f"{REFERENCE}/", lambda: reference_files(config.root_path)),
    ]
    return [*routes, _file_route(state, FOLDER, lambda: page_files(config.root_path))] if config.ui else routes


def _file_route(state: RequestAdmission, folder: str, files: Callable[[], PageFiles]) -> Route:
    async def file(state: RequestAdmission, request: Request) -> Response:
        name = request.path_params["name"]
        found = files().file(request.path_params["version"], name, request)
        if found is None:
            raise ApiError(404, f"the page has no file {name[:80]!r}", code="unknown_path")
        return found

    return Route(f"{folder}{{version}}/{{name}}", Endpoint(state, file), methods=["GET"])
