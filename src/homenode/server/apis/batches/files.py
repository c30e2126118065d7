"""/v1/files: files of requests that are sent, and files of results that are fetched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Literal

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from homenode.server.batches.batch_folder import BatchFolder
from homenode.server.batches.file_store import StoredFile
from homenode.server.core.state import ServerState
from homenode.server.http.endpoint import json_response
from homenode.server.http.failures import ApiError
from homenode.server.http.form import UploadedForm, read_form
from homenode.server.http.listing import Page, page_of
from homenode.server.keys.caller import caller

MOST_FILES = 10_000  # of one page
MEDIA_TYPE = "application/jsonl"
_CHUNK = 2**18


class FileObject(Struct, kw_only=True):
    """A file, as it is told."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: str


class FileDeleted(Struct, kw_only=True):
    """Answer of DELETE /v1/files/{file_id}."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


async def upload_file(state: ServerState, request: Request) -> Response:
    """Keep a file that is sent as a form."""
    folder, most = folder_of(state), state.config.batch_file_size
    with folder.files.write("batch", "", caller().name) as (file, told):
        form = UploadedForm(file.write, most, "--batch-file-size")
        await read_form(request, form, state.config.request_read_timeout)
        purpose = form.fields.get("purpose")
        if purpose != "batch":
            text = f"`purpose` is {(purpose or '')[:50]!r}; the files that are kept here are of the purpose `batch`"
            raise ApiError(400, text, param="purpose", code="invalid_value")
        told.filename = (form.filename or "")[:256]
    return json_response(_shown(told))


async def list_files(state: ServerState, request: Request) -> Response:
    """The files of the caller's key, the newest first."""
    mine = await asyncio.to_thread(folder_of(state).files.all_of, caller().name)
    purpose = request.query_params.get("purpose")
    found = [told for told in mine if purpose in (None, told.purpose)]
    page: Page[FileObject] = page_of(
        request, found, lambda told: told.id, shown=_shown, most=MOST_FILES, usual=MOST_FILES
    )
    return json_response(page)


async def retrieve_file(state: ServerState, request: Request) -> Response:
    """Return what is told of a file."""
    return json_response(_shown(file_of(state, request.path_params["file_id"])))


async def read_file(state: ServerState, request: Request) -> Response:
    """The bytes of a file."""
    told = file_of(state, request.path_params["file_id"])
    file = folder_of(state).files.open(told.id)

    async def chunks() -> AsyncIterator[bytes]:
        with file:
            while chunk := await asyncio.to_thread(file.read, _CHUNK):
                yield chunk

    return StreamingResponse(chunks(), media_type=MEDIA_TYPE, headers={"Content-Length": str(told.bytes)})


async def delete_file(state: ServerState, request: Request) -> Response:
    """Keep a file no longer. The input of a batch stays until that has ended."""
    folder, told = folder_of(state), file_of(state, request.path_params["file_id"])
    users = await asyncio.to_thread(folder.batches.unfinished)
    if user := next((batch for batch in users if batch.input_file_id == told.id), None):
        text = f"the file is the input of {user.id}, which has not ended; cancel that first"
        raise ApiError(409, text, param="file_id", code="file_in_use")
    folder.files.remove(told.id)
    return json_response(FileDeleted(id=told.id))


def folder_of(state: ServerState) -> BatchFolder:
    """The folder of --batch-dir, which is there where these paths are."""
    assert state.batch_folder is not None
    return state.batch_folder


def file_of(state: ServerState, id: object, param: str | None = None) -> StoredFile:
    """The file of this id that is the caller's. Raises ApiError 404 for any other, or 400 of the field `param`."""
    told = folder_of(state).files.find(str(id), caller().name)
    if told is None:
        status, code = (404, "file_not_found") if param is None else (400, "invalid_value")
        raise ApiError(status, f"there is no file {str(id)[:100]!r}", param=param or "file_id", code=code)
    return told


def _shown(told: StoredFile) -> FileObject:
    return FileObject(
        id=told.id,
        bytes=told.bytes,
        created_at=told.created_at,
        filename=told.filename,
        purpose=told.purpose,
        status=told.status,
    )
