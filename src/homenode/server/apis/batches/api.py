"""The operations on files and batches, which are there with --batch-dir."""

from __future__ import annotations

from typing import Any

from homenode.server.apis.batches import batches, files
from homenode.server.core.api import POST_FAILURES, Api, Operation
from homenode.server.core.state import ServerState
from homenode.server.http.listing import Page, page_query

_LOOKED_AT = (400, 401, 404, 405, 500)


def _tighten(components: dict[str, Any], state: ServerState) -> None:
    asked = components[batches.CreateBatchRequest.__name__]["properties"]
    asked["endpoint"] = {"enum": sorted(files.folder_of(state).paths)}


API = Api(
    operations=(
        Operation(
            path="/v1/files",
            method="post",
            summary="Keep a file of requests, sent as a form.",
            handler=files.upload_file,
            answer=files.FileObject,
            form={"purpose": {"const": "batch"}, "file": {"type": "string", "format": "binary"}},
            failures=POST_FAILURES,
        ),
        Operation(
            path="/v1/files",
            method="get",
            summary="The files that are kept.",
            handler=files.list_files,
            answer=Page[files.FileObject],
            failures=_LOOKED_AT,
            query={**page_query(files.MOST_FILES, files.MOST_FILES), "purpose": {"type": "string"}},
        ),
        Operation(
            path="/v1/files/{file_id}",
            method="get",
            summary="Facts of a file.",
            handler=files.retrieve_file,
            answer=files.FileObject,
            failures=_LOOKED_AT,
        ),
        Operation(
            path="/v1/files/{file_id}/content",
            method="get",
            summary="The bytes of a file.",
            handler=files.read_file,
            answer=None,
            media_type=files.MEDIA_TYPE,
            failures=_LOOKED_AT,
        ),
        Operation(
            path="/v1/files/{file_id}",
            method="delete",
            summary="Keep a file no longer.",
            handler=files.delete_file,
            answer=files.FileDeleted,
            failures=(409, *_LOOKED_AT),
        ),
        Operation(
            path="/v1/batches",
            method="post",
            summary="Compute the requests of a file when nobody else has work.",
            handler=batches.create_batch,
            answer=batches.BatchObject,
            body=batches.CreateBatchRequest,
            failures=POST_FAILURES,
        ),
        Operation(
            path="/v1/batches",
            method="get",
            summary="The batches that there are.",
            handler=batches.list_batches,
            answer=Page[batches.BatchObject],
            failures=_LOOKED_AT,
            query=page_query(batches.MOST_BATCHES, batches.BATCHES),
        ),
        Operation(
            path="/v1/batches/{batch_id}",
            method="get",
            summary="How far a batch is.",
            handler=batches.retrieve_batch,
            answer=batches.BatchObject,
            failures=_LOOKED_AT,
        ),
        Operation(
            path="/v1/batches/{batch_id}/cancel",
            method="post",
            summary="End a batch, and keep what is done of it.",
            handler=batches.cancel_batch,
            answer=batches.BatchObject,
            failures=(409, *_LOOKED_AT),
        ),
    ),
    tighten=_tighten,
)
