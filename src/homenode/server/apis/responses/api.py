"""The parts that the Responses API consists of."""

from __future__ import annotations

from homenode.server.apis.responses import endpoint, stored
from homenode.server.apis.responses.events import ResponsesEvent, lost_stream
from homenode.server.apis.responses.openapi import tighten
from homenode.server.apis.responses.output import ResponseObject
from homenode.server.apis.responses.request import ResponsesRequest
from homenode.server.core.api import POST_FAILURES, Api, Operation
from homenode.server.core.pooling import generates
from homenode.server.http.listing import page_query

_OF_STORED = (401, 404, 405, 500)


API = Api(
    operations=(
        Operation(
            path="/v1/responses",
            method="post",
            summary="Answer a conversation of items, and keep the answer.",
            handler=endpoint.create_response,
            answer=ResponseObject,
            body=ResponsesRequest,
            streams=ResponsesEvent,
            failures=POST_FAILURES,
            admits=True,
            documented=generates,
        ),
        Operation(
            path="/v1/responses/input_tokens",
            method="post",
            summary="How many tokens the prompt of a request to /v1/responses has.",
            handler=endpoint.count_input_tokens,
            answer=endpoint.ResponsesInputTokens,
            body=ResponsesRequest,
            failures=POST_FAILURES,
            admits=True,
            documented=generates,
        ),
        Operation(
            path="/v1/responses/{response_id}",
            method="get",
            summary="A response that is kept.",
            handler=stored.retrieve_response,
            answer=ResponseObject,
            failures=(400, *_OF_STORED),
            query={"stream": {"enum": ["false"]}},
        ),
        Operation(
            path="/v1/responses/{response_id}",
            method="delete",
            summary="Keep a response no longer.",
            handler=stored.delete_response,
            answer=stored.ResponseDeleted,
            failures=_OF_STORED,
        ),
        Operation(
            path="/v1/responses/{response_id}/cancel",
            method="post",
            summary="Cancel a response that is being made in the background: there is none.",
            handler=stored.cancel_response,
            answer=ResponseObject,
            failures=(400, *_OF_STORED),
        ),
        Operation(
            path="/v1/responses/{response_id}/input_items",
            method="get",
            summary="The items that a response was an answer to.",
            handler=stored.list_input_items,
            answer=stored.ResponseItems,
            failures=(400, *_OF_STORED),
            query=page_query(stored.MOST_ITEMS, stored.ITEMS),
        ),
    ),
    tighten=tighten,
    stream_failure=lost_stream,
)
