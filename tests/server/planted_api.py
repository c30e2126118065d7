"""A third API, for tests: POST /lines writes what the model says as lines, over the generation core alone."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from homenode.sampling import SamplingParams
from homenode.server.core.answer import respond
from homenode.server.core.api import POST_FAILURES, Api, Operation
from homenode.server.core.choices.choice import GenerationEvent
from homenode.server.core.generation import Generation
from homenode.server.core.prompts import encode_prompts
from homenode.server.core.request import GenerationRequest, begin
from homenode.server.core.state import ServerState
from homenode.server.http.decoding import FieldHints, decode_as
from homenode.server.http.exchange import read_json
from homenode.server.http.failures import ApiError


class LinesRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """`start`: the text to go on with. `tokens`: the most of each line."""

    start: str
    tokens: Annotated[int, Meta(ge=1)] | None = None
    count: int = 1
    until: str | None = None
    live: bool = False


class Lines(Struct):
    """`spent`: tokens of the start, of the lines."""

    lines: list[str]
    ends: list[str | None]
    spent: tuple[int, int]


class Sorry(Struct):
    """What went wrong, in the words of this API."""

    sorry: str
    field: str | None


class LinesFormat:
    """A `TextFormat`: one line for each choice; as events, pieces of lines with their number."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    def whole(self, choices: list[GenerationEvent]) -> bytes:
        usage = self._generation.usage()
        lines = Lines([c.text for c in choices], [c.finish_reason for c in choices], tuple(usage[:2]))
        return msgspec.json.encode(lines)

    def event(self, event: GenerationEvent, *, first: bool) -> bytes:
        opening = b"event: line\ndata: %d\n\n" % event.choice if first else b""
        return opening + b"event: text\ndata: " + msgspec.json.encode([event.choice, event.text]) + b"\n\n"

    def end(self) -> bytes:
        return b"event: spent\ndata: %d\n\n" % self._generation.usage().completion_tokens

    def failure(self, error: ApiError) -> bytes:
        return b"event: sorry\ndata: " + msgspec.json.encode(str(error)) + b"\n\n"


_decode = decode_as(LinesRequest, FieldHints({}, {"rhyme": "the model does not rhyme"}))


async def lines(state: ServerState, request: Request) -> Response:
    asked_model, body = state.models.find(None), await read_json(state, request, _decode)
    prompts = await encode_prompts(asked_model.model, [body.start], "start", add_special_tokens=True, n=body.count)
    sampling = SamplingParams(n=body.count, temperature=0, stop=body.until or [])
    asked = GenerationRequest(prompts=prompts, sampling=sampling, max_tokens=body.tokens, stream=body.live)
    generation = await begin(asked_model, asked)
    return await respond(state, request, generation, LinesFormat(generation), stream=body.live)


API = Api(
    operations=(
        Operation(
            path="/lines",
            method="post",
            summary="Write lines.",
            handler=lines,
            answer=Lines,
            body=LinesRequest,
            streams=Lines,
            failures=POST_FAILURES,
            admits=True,
        ),
    ),
    error_shape=lambda error: Sorry(str(error), error.body.error.param),
    error_body=Sorry,
)
