"""POST /v1/completions: a request becomes one of the generation core, whose events become text completions."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from homenode.server.apis.openai.completions.answer import CompletionFormat, TextCompletion
from homenode.server.apis.openai.completions.request import CompletionRequest
from homenode.server.apis.openai.openapi import one_prompt, prompt_schema, tighten_kv_transfer, tighten_sampling
from homenode.server.apis.openai.requests import HINTS
from homenode.server.apis.openai.sampling import generation_request, sampling_of
from homenode.server.apis.openai.structured import output_of
from homenode.server.apis.openai.structured_openapi import tighten_structured
from homenode.server.core.answer import respond
from homenode.server.core.api import POST_FAILURES, Api, Operation
from homenode.server.core.choices.grammars import grammar_of
from homenode.server.core.generation import Generation
from homenode.server.core.pooling import generates
from homenode.server.core.prompt_forms.fill_in_middle import encode_middles, ended_by_middle
from homenode.server.core.prompt_forms.prompt_rows import check_rows_taken, encode_rows
from homenode.server.core.prompts import encode_prompts, split_prompts, texts_memory
from homenode.server.core.request import begin, check_limits
from homenode.server.core.state import ServerState
from homenode.server.http.decoding import decode_as
from homenode.server.http.exchange import unless_gone_early
from homenode.server.http.failures import ApiError
from homenode.server.http.ignored import note_not_kept
from homenode.server.models.model_table import read_for_model
from homenode.server.models.served_model import AskedModel, ServedModel

_DEFAULT_MAX_TOKENS = 16
_decode = decode_as(CompletionRequest, HINTS)


async def completions(state: ServerState, request: Request) -> Response:
    """Continue one or several prompts."""
    body, asked_model = await read_for_model(state, request, _decode)
    generation = await unless_gone_early(request, _begin(asked_model, request, body))
    answer = CompletionFormat(asked_model.model, asked_model.name, body, generation)
    return await respond(state, request, generation, answer, stream=bool(body.stream))


async def _begin(asked_model: AskedModel, request: Request, body: CompletionRequest) -> Generation:
    model = asked_model.model
    if body.best_of not in (None, 1, body.n):
        text = (
            f"`best_of` is {body.best_of} and `n` is {body.n or 1}: ask for several choices with `n` and pick one "
            "yourself"
        )
        raise ApiError(400, text, param="best_of", code="invalid_value")
    prompts = await _prompts(model, body)
    embeds = [body.prompt_embeds] if isinstance(body.prompt_embeds, str) else body.prompt_embeds or []
    if embeds:
        _check_beside_rows(model, body)
    scores = body.logprobs if body.echo else None
    if body.prompt_logprobs is not None:
        scores = max(body.prompt_logprobs, scores or 0)
    sampling = msgspec.structs.replace(sampling_of(body), logprobs=body.logprobs, prompt_logprobs=scores)
    check_limits(model, len(prompts) + len(embeds), sampling)
    if (output := output_of(body)) is not None:
        grammar = await grammar_of(model, *output)
        note_not_kept(request, grammar.left_out)
        sampling = msgspec.structs.replace(sampling, grammar=grammar.text)
    async with model.text_work.reserve(texts_memory([*prompts, *embeds, body.suffix or ""])):
        if body.suffix:
            if body.echo:
                text = "`echo` does not go with `suffix`: the prompt of a middle is no beginning of its text"
                raise ApiError(400, text, param="echo", code="invalid_value")
            encoded = await encode_middles(model, prompts, body.suffix, n=sampling.n)
            sampling = ended_by_middle(model, sampling)
        else:
            encoded = await encode_prompts(
                model, prompts, "prompt", add_special_tokens=body.add_special_tokens is not False, n=sampling.n
            )
        if embeds:
            encoded = [*await encode_rows(model, embeds, "prompt_embeds", n=sampling.n), *encoded]
        max_tokens = _DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
        asked = generation_request(
            body,
            encoded,
            sampling,
            max_tokens,
            echo=bool(body.echo),
            shows_stop=bool(body.include_stop_str_in_output),
        )
        return await begin(asked_model, asked)


async def _prompts(model: ServedModel, body: CompletionRequest) -> list[str | list[int]]:
    """Raises ApiError 400 where there is neither a text, nor ids, nor rows."""
    given = body.prompt
    if given is not None:
        return await model.text_work.run(lambda: split_prompts(given, "prompt"), len(given))
    if body.prompt_embeds is None:
        text = "the required field `prompt` is missing"
        raise ApiError(400, text, param="prompt", code="missing_required_parameter")
    return []


def _check_beside_rows(model: ServedModel, body: CompletionRequest) -> None:
    """Raises ApiError 400 for what needs the tokens of a prompt, where it has none."""
    check_rows_taken(model, "prompt_embeds")
    for name in ("echo", "suffix", "prompt_logprobs", "return_token_ids"):
        if getattr(body, name) not in (None, False, ""):
            text = f"`{name}` does not go with `prompt_embeds`: rows have no tokens"
            raise ApiError(400, text, param=name, code="invalid_value")


def _tighten(components: dict[str, Any], state: ServerState) -> None:
    schema = components[CompletionRequest.__name__]
    begins = state.limits.takes_empty_text  # an empty text has a token: the one that begins a text
    schema["properties"]["prompt"] = prompt_schema(state, 0 if begins else 1)
    schema["properties"]["prompt_embeds"] = {"type": "null", "default": None}  # of what is in base64 no schema tells
    schema["required"] = ["prompt"]
    if begins:
        added = {"properties": {"add_special_tokens": {"enum": [True, None]}}}
        schema.setdefault("allOf", []).append({"anyOf": [added, {"properties": {"prompt": prompt_schema(state, 1)}}]})
    # What is equal to `n` is taken as well, which no schema can say.
    schema["properties"]["best_of"] = {"enum": [1, None], "default": None}
    if not state.limits.fills_middle:
        schema["properties"]["suffix"] = {"enum": ["", None], "default": None}
    tighten_sampling(schema, state)
    tighten_structured(components, schema)
    tighten_kv_transfer(schema, state, one_prompt())


API = Api(
    operations=(
        Operation(
            path="/v1/completions",
            method="post",
            summary="Continue a prompt.",
            handler=completions,
            answer=TextCompletion,
            body=CompletionRequest,
            streams=TextCompletion,
            failures=POST_FAILURES,
            admits=True,
            documented=generates,
        ),
    ),
    tighten=_tighten,
)
