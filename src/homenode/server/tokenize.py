"""POST /tokenize, POST /detokenize and GET /tokenizer_info: the model's tokenizer for clients that have none."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from homenode.server import prompts
from homenode.server.decoding import decode_as
from homenode.server.exchange import read_json
from homenode.server.failures import ApiError
from homenode.server.openai import DetokenizeRequest, TokenizeRequest
from homenode.server.responses import Detokenized, Tokenized
from homenode.server.state import ServerState

_decode_tokenize = decode_as(TokenizeRequest)
_decode_detokenize = decode_as(DetokenizeRequest)


async def tokenize(state: ServerState, request: Request) -> Response:
    """Token ids of a text or of a conversation."""
    body = await read_json(state, request, _decode_tokenize)
    state.model(body.model)
    ids = await _ids(state, body)
    texts = [state.tokenizer.token_text(token) for token in ids] if body.return_token_strs else None
    answer = Tokenized(count=len(ids), max_model_len=state.ready.max_model_len, tokens=ids, token_strs=texts)
    return Response(msgspec.json.encode(answer), media_type="application/json")


async def detokenize(state: ServerState, request: Request) -> Response:
    """Text of token ids, special tokens included unless they are to be skipped."""
    body = await read_json(state, request, _decode_detokenize)
    state.model(body.model)
    prompts.check_token_ids(state, body.tokens, "tokens")
    text = state.tokenizer.decode(body.tokens, skip_special_tokens=bool(body.skip_special_tokens))
    return Response(msgspec.json.encode(Detokenized(text)), media_type="application/json")


async def tokenizer_info(state: ServerState, request: Request) -> Response:
    """Special tokens, chat template and sizes."""
    facts = {
        "bos_token": None,
        "eos_token": None,
        "pad_token": None,
        "max_model_len": state.ready.max_model_len,
        **state.tokenizer.info(),
    }
    return Response(msgspec.json.encode(facts), media_type="application/json")


async def _ids(state: ServerState, body: TokenizeRequest) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "give either `prompt` or `messages`", param="prompt", code="invalid_value")
    if body.prompt is not None:
        return await prompts.text_ids(state, body.prompt, body.add_special_tokens is not False)
    assert body.messages is not None
    return await prompts.chat_ids(
        state,
        body.messages,
        template_kwargs=body.chat_template_kwargs,
        add_generation_prompt=body.add_generation_prompt,
        continue_final=bool(body.continue_final_message),
        add_special_tokens=body.add_special_tokens,
    )
