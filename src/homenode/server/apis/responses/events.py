"""Events of a response that is streamed."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Struct, UnsetType

from homenode.server.apis.responses.output import (
    OutputItem,
    ResponseObject,
    ResponsesLogprob,
    ResponsesOutputText,
    ResponsesReasoningText,
    ResponsesSummaryText,
)
from homenode.server.http.failures import ApiError


class ResponsesEvent(Struct, kw_only=True):
    """An event. `type` says which of the other fields it has.

    `sequence_number`: 0 for the first event of a stream, and one more for each that follows. `output_index`: of the
    item that it is about, whose id is `item_id`.
    """

    type: str
    sequence_number: int = 0
    response: ResponseObject | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    item: OutputItem | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    summary_index: int | UnsetType = UNSET
    part: ResponsesOutputText | ResponsesReasoningText | ResponsesSummaryText | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    logprobs: list[ResponsesLogprob] | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    input: str | UnsetType = UNSET
    code: str | UnsetType | None = UNSET
    message: str | UnsetType = UNSET
    param: str | UnsetType | None = UNSET


def encoded(event: ResponsesEvent) -> bytes:
    """The event on the wire, under its name."""
    return b"event: " + event.type.encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"


def lost_stream(error: ApiError) -> bytes:
    """The event that ends a stream which never came to have a response."""
    told = error.body.error
    return encoded(ResponsesEvent(type="error", code=told.code, message=told.message, param=told.param))
