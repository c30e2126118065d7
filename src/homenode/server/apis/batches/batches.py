"""/v1/batches: files of requests that are computed when nobody else has work."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from homenode.server.apis.batches.files import file_of, folder_of
from homenode.server.batches.batch_store import BatchRecord, LineErrors, RequestCounts
from homenode.server.core.state import ServerState
from homenode.server.http.decoding import FieldHints, decode_as
from homenode.server.http.endpoint import json_response
from homenode.server.http.exchange import read_json
from homenode.server.http.failures import ApiError
from homenode.server.http.listing import Page, page_of
from homenode.server.keys.caller import caller

MOST_BATCHES, BATCHES = 100, 20  # of one page: the most, and where nothing is said


class BatchObject(Struct, kw_only=True):
    """A batch, as it is told; times are Unix seconds."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: LineErrors | None
    input_file_id: str
    completion_window: str
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None


class CreateBatchRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /v1/batches. `endpoint`: the path that every line of the file asks."""

    input_file_id: str
    endpoint: str
    completion_window: Literal["24h"] = "24h"
    metadata: Annotated[dict[str, Annotated[str, Meta(max_length=512)]], Meta(max_length=16)] | None = None


_decode = decode_as(CreateBatchRequest, FieldHints({"completion_window": "give 24h"}, {}))


async def create_batch(state: ServerState, request: Request) -> Response:
    """Make a batch of a file."""
    body = await read_json(state, request, _decode)
    folder = folder_of(state)
    if body.endpoint not in folder.paths:
        text = f"`endpoint` is {body.endpoint[:100]!r}; a batch can ask {', '.join(sorted(folder.paths))}"
        raise ApiError(400, text, param="endpoint", code="invalid_value")
    told = file_of(state, body.input_file_id, "input_file_id")
    batch = folder.batches.create(body.endpoint, told.id, body.metadata, caller().name)
    return json_response(_shown(batch))


async def list_batches(state: ServerState, request: Request) -> Response:
    """The batches of the caller's key, the newest first."""
    mine = await asyncio.to_thread(folder_of(state).batches.all_of, caller().name)
    page: Page[BatchObject] = page_of(
        request, mine, lambda batch: batch.id, shown=_shown, most=MOST_BATCHES, usual=BATCHES
    )
    return json_response(page)


async def retrieve_batch(state: ServerState, request: Request) -> Response:
    """How far a batch is."""
    return json_response(_shown(_batch(state, request)))


async def cancel_batch(state: ServerState, request: Request) -> Response:
    """End a batch: what is done of it is kept, nothing more is computed."""
    batch = _batch(state, request)
    if batch.completed_at or batch.failed_at or batch.expired_at:
        text = f"the batch is {batch.status} already"
        raise ApiError(409, text, param="batch_id", code="batch_ended")
    if batch.cancelled_at is None:
        folder_of(state).batches.ask_cancel(batch.id)
    return json_response(_shown(_batch(state, request)))


def _batch(state: ServerState, request: Request) -> BatchRecord:
    """Raises ApiError 404 for one that is not the caller's."""
    id = str(request.path_params["batch_id"])
    batch = folder_of(state).batches.find(id, caller().name)
    if batch is None:
        raise ApiError(404, f"there is no batch {id[:100]!r}", param="batch_id", code="batch_not_found")
    return batch


def _shown(batch: BatchRecord) -> BatchObject:
    fields = {name: getattr(batch, name) for name in BatchObject.__struct_fields__}
    return msgspec.convert(fields, BatchObject, from_attributes=True)
