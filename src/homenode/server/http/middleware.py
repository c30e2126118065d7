"""The layers that every request passes through before its endpoint: it gets an id, its key is checked, and each failure
becomes an answer.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Collection, MutableMapping, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from homenode.logs.request_mark import RequestMark, reset_request_mark, set_request_mark
from homenode.net.api_keys import keys_in
from homenode.server.doors.origins import AllowedOrigins
from homenode.server.doors.root_path import strip_root_path
from homenode.server.http.config import HttpConfig
from homenode.server.http.exchange import ClientGone
from homenode.server.http.failures import ApiError, ErrorShape, failure_of
from homenode.server.http.ignored import IgnoredNames, ignored_headers
from homenode.server.http.protocol import FROM_RESERVE
from homenode.server.http.unknown_path import unknown_path
from homenode.server.keys.caller import set_caller
from homenode.server.keys.keyring import Keyring
from homenode.server.tracing.span import RequestTracing
from homenode.server.tracing.trace_parent import trace_id_of

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
INSIDE = "homenode.caller"  # in the scope of a request that the server makes itself: for whom
OPEN_PATHS = frozenset({"/health", "/livez", "/readyz", "/ping"})  # probes have no key


class HttpApplication:
    """An ASGI application that gives every request an id, checks its key, and turns every failure into an answer."""

    def __init__(
        self,
        routes: Sequence[Route],
        config: HttpConfig,
        keys: Keyring,
        closing: Callable[[], bool],
        shapes: Sequence[tuple[Route, ErrorShape]] = (),
        *,
        strict: bool = False,
        is_open: Callable[[Request], bool] = lambda request: False,
        tracing: RequestTracing | None = None,
        traced: Collection[str] = (),
    ) -> None:
        """`closing`: whether connections are to end with their answer. `shapes`: of failures, by the routes of APIs
        that have one of their own. `strict`: requests are refused of which something would be ignored.
        `is_open`: whether a request needs no key. `tracing`: of requests that are posted to the paths `traced`.
        """
        self._ignored = IgnoredNames(strict=strict)
        self._shapes = shapes
        self._keys = keys
        self._origins, self._root_path = AllowedOrigins(config.allowed_origins), config.root_path
        self._closing, self._is_open = closing, is_open
        self._tracing, self._traced = tracing, frozenset(traced)
        self._router = Router(routes, redirect_slashes=False, default=self._not_found)
        self._routes = tuple(routes)
        self._paths = tuple(route.path for route in routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        request.state.request_id = _request_id(request)
        mark = RequestMark(request.state.request_id, trace_id_of(request.headers.get("traceparent", "")))
        token = set_request_mark(mark)
        try:
            await self._answer(request, mark, send)
        finally:
            reset_request_mark(token)

    async def _answer(self, request: Request, mark: RequestMark, send: Send) -> None:
        scope, receive = request.scope, request.receive
        self._ignored.begin(request)
        scope["app"] = self  # the router raises for a wrong method only inside an application
        started, status = False, 0

        async def stamped(message: MutableMapping[str, Any]) -> None:
            nonlocal started, status
            if message["type"] == "http.response.start":
                started, status = True, message["status"]
                message["headers"] = [*message.get("headers", ()), *self._headers(request)]
            await send(message)

        try:
            strip_root_path(scope, self._root_path)
            _check_connection(scope["path"], request)
            if (answer := self._origins.preflight(request.method, request.headers)) is not None:
                await answer(scope, receive, stamped)
                return
            if request.method == "OPTIONS" and "access-control-request-method" not in request.headers:
                await self._options(scope["path"])(scope, receive, stamped)
                return
            self._check_key(scope["path"], request)
            self._begin_trace(scope["path"], request, mark)
            await self._router(scope, receive, stamped)
        except ClientGone:
            return
        except Exception as error:  # the last resort of every request: the log keeps the reason, the client gets a body
            failure = _failure(error, request.state.request_id)
            failure.__traceback__ = (
                None  # which leads to this frame, and would keep the request's body until a collection of cycles
            )
            if not started:  # otherwise the connection is closed: a cut answer must not look whole
                await failure.response(self._shape_of(scope["path"]))(scope, receive, stamped)
        finally:
            self._end_trace(mark, status)

    def _begin_trace(self, path: str, request: Request, mark: RequestMark) -> None:
        if self._tracing is None or request.method != "POST" or path not in self._traced:
            return
        attributes = {"http.request.method": "POST", "http.route": path, "homenode.request.id": mark.request_id}
        span = self._tracing.begin_request(f"POST {path}", request.headers, attributes)
        mark.span, mark.trace_id = span, span.trace_id

    def _end_trace(self, mark: RequestMark, status: int) -> None:
        if self._tracing is not None and mark.span is not None:
            self._tracing.end_request(mark.span, status)

    def _options(self, path: str) -> Response:
        """The methods of a path, or of the server (`*`). Raises ApiError 404 for a path that there is not."""
        found = [route for route in self._routes if path in ("*", "") or route.path_regex.match(path)]
        found = [route for route in found if route.path == path] or found  # a word goes before a parameter in its place
        if not found:
            raise ApiError(404, unknown_path(path, self._paths), code="unknown_path")
        methods = {"OPTIONS"}.union(*(route.methods or () for route in found))
        return Response(status_code=204, headers={"Allow": ", ".join(sorted(methods))})

    def _shape_of(self, path: str) -> ErrorShape | None:
        """Return the shape of a failure at a path, whatever it failed at: its key, its method, its body or in the
        engine.
        """
        return next((shape for route, shape in self._shapes if route.path_regex.match(path)), None)

    def _headers(self, request: Request) -> list[tuple[bytes, bytes]]:
        headers = [(b"x-request-id", request.state.request_id.encode()), *ignored_headers(request)]
        headers += self._origins.headers(request.headers)
        if self._closing() or getattr(request.state, FROM_RESERVE, False):
            headers.append((b"connection", b"close"))
        return headers

    async def _not_found(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise ApiError(404, unknown_path(scope["path"], self._paths), code="unknown_path")

    def _check_key(self, path: str, request: Request) -> None:
        """Raises ApiError 401."""
        if (inside := request.scope.get(INSIDE)) is not None:
            set_caller(inside)
            return
        if not self._keys.asked or path in OPEN_PATHS or self._is_open(request):
            return
        who = self._keys.caller_of(keys_in(request.headers))
        if who is None:
            message = "the API key is missing or wrong; send it as `Authorization: Bearer KEY` or `x-api-key: KEY`"
            raise ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        set_caller(who if request.method == "POST" else who.uncounted())  # what only looks costs nothing


def _check_connection(path: str, request: Request) -> None:
    """Raises ApiError 503 on a connection that is one too many: it is there for probes, which say that the server is
    alive.
    """
    if getattr(request.state, FROM_RESERVE, False) and path not in OPEN_PATHS:
        message = "the server has as many connections as its limit of open files allows"
        raise ApiError(503, message, code="overloaded", retry_after_s=1)


def _failure(error: Exception, request_id: str) -> ApiError:
    if isinstance(error, HTTPException):  # the router: a method the path does not take
        return ApiError(
            error.status_code,
            f"{error.detail}: this path takes {(error.headers or {}).get('Allow', 'others')}; see /openapi.json",
            code="method_not_allowed",
            headers=error.headers,
        )
    return failure_of(error, request_id)


def _request_id(request: Request) -> str:
    given = request.headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
