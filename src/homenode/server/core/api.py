"""The parts that an HTTP API consists of: its operations, from which both the routes and the OpenAPI document
are made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from homenode.server.core.state import ServerState
from homenode.server.http.endpoint import Handler
from homenode.server.http.failures import ApiError, ErrorBody, ErrorShape
from homenode.server.http.sse import EVENTS, StreamForm, event
from homenode.server.models.served_model import ServedModel

POST_FAILURES = (400, 401, 404, 405, 408, 413, 415, 429, 500, 503)  # statuses of operations that take a body


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A path, what answers there, and what the OpenAPI document says about it.

    `path` may have names in braces, and `query` the OpenAPI schemas of parameters by their names. `form`: the OpenAPI
    schemas of the fields of a form, by their names, where the body is sent as one. `answer`: the type of the body, None
    for text of the type `media_type`, dict for any object. `streams`: the types of the events, where the answer can be
    a stream, which has the form `stream_form`. `may_be_list`: the answer can be a list as well. `admits`: requests are
    refused while the server drains, and the drain waits for those under way. `documented`: whether a model can do it;
    the OpenAPI document has no operation that every served model refuses.
    """

    path: str
    method: str
    summary: str
    handler: Handler[ServerState]
    answer: type | None
    media_type: str = "text/plain"
    body: type | None = None
    form: Mapping[str, Any] | None = None
    streams: type | tuple[type, ...] | None = None
    stream_form: StreamForm = EVENTS
    failures: tuple[int, ...] = (401, 405, 500)
    may_be_list: bool = False
    query: Mapping[str, Any] = field(default_factory=dict)
    admits: bool = False
    documented: Callable[[ServedModel], bool] = lambda model: True

    @property
    def stream_types(self) -> tuple[type, ...]:
        """The types of the events of a stream; none where the answer is never one."""
        if self.streams is None:
            return ()
        return self.streams if isinstance(self.streams, tuple) else (self.streams,)


def stream_failure(error: ApiError) -> bytes:
    """The event of the OpenAI API: an error body."""
    return event(error.body)


def _nothing(components: dict[str, Any], state: ServerState) -> None:
    """The types of the API say everything."""


@dataclass(frozen=True, kw_only=True)
class Api:
    """One API. `tighten` adds to the OpenAPI schemas, by type name, what types cannot say of the served models.
    `error_shape` makes the body of an answer that is not a success, of the type `error_body`; None: that of the OpenAI
    API. `stream_failure`: the event that ends a stream of which nothing but the head was sent; what goes wrong later in
    one is told by its `AnswerFormat`. `prefix`: what its paths begin with, so that one that there is not is refused in
    this shape, too.
    """

    operations: tuple[Operation, ...]
    error_shape: ErrorShape | None = None
    error_body: type = ErrorBody
    prefix: str | None = None
    stream_failure: Callable[[ApiError], bytes] = stream_failure
    tighten: Callable[[dict[str, Any], ServerState], None] = _nothing
