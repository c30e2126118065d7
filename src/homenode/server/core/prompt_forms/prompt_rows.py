"""Prompts that a client gives as rows of embeddings: from base64 text to the parts of a prompt."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from homenode.engine.inputs import ROW_DIGEST_BYTES, PromptPart, PromptRows
from homenode.server.core.prompts import EncodedPrompt, check_prompt, check_prompt_tokens
from homenode.server.http.failures import ApiError
from homenode.server.models.served_model import ServedModel
from homenode.units import format_bytes

if TYPE_CHECKING:
    from homenode.engine.sent_tensor import SentTensor

_MOST_BYTES = 64 * 2**20  # of the rows of a request; each sequence takes its own to the engine
_FORM = "base64 of a safetensors file with one tensor [tokens, columns], or of what torch.save writes of one"


def check_rows_taken(model: ServedModel, param: str) -> None:
    """Raises ApiError 400 where the engine takes token ids alone."""
    if not model.ready.row_columns:
        text = f"`{param}` is not taken here: the server was started without --enable-prompt-embeds; send token ids"
        raise ApiError(400, text, param=param, code="unsupported_parameter")


async def encode_rows(model: ServedModel, texts: Sequence[str], param: str, *, n: int) -> list[EncodedPrompt]:
    """Prompts of the field `param`, each answered `n` times. Raises ApiError 400, naming the prompt, for one that is no
    rows of this model or does not fit.
    """
    check_rows_taken(model, param)
    encoded, size, tokens = [], 0, 0
    for number, text in enumerate(texts):
        name = param if len(texts) == 1 else f"{param}[{number}]"
        rows = await model.text_work.run(lambda text=text, name=name: _rows_of(model, text, name))  # type: ignore[misc]
        size, tokens = size + len(rows.data), tokens + len(rows)
        if size * n > _MOST_BYTES:
            asked = f"`{param}` has" if n == 1 else f"`{param}` and `n` ask for"
            text = f"{asked} more than {format_bytes(_MOST_BYTES)} of rows, which one request may have"
            raise ApiError(400, text, param=param if n == 1 else "n", code="invalid_value")
        prompt = EncodedPrompt.of_parts([PromptPart.of_rows(rows)])
        check_prompt(model, prompt.ids, name)
        check_prompt_tokens(tokens, param, n)
        encoded.append(prompt)
        await asyncio.sleep(0)  # others get a turn
    return encoded


def _rows_of(model: ServedModel, text: str, name: str) -> PromptRows:
    import numpy as np  # this and the readers of files not before somebody sends rows: servers start without them

    from homenode.engine.sent_tensor import TensorFormatError, read_sent_tensor

    try:
        tensor = read_sent_tensor(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError) as error:
        seen = error if isinstance(error, TensorFormatError) else "no base64"
        raise _wrong(name, f"is {seen}; wanted {_FORM}") from None
    _check_shape(model, tensor, name)
    rows = np.ascontiguousarray(tensor.array().reshape(tensor.shape[-2:]))
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise _wrong(name, f"has values in row {int(np.argmin(finite))} that are no finite numbers")
    data = rows.tobytes()
    width = 4 * rows.shape[1]
    digests = b"".join(
        hashlib.blake2b(data[at : at + width], digest_size=ROW_DIGEST_BYTES).digest()
        for at in range(0, len(data), width)
    )
    return PromptRows(data, rows.shape[1], digests)


def _check_shape(model: ServedModel, tensor: SentTensor, name: str) -> None:
    """Before numbers are made of its bytes. One batch of rows is rows."""
    shape, wanted, most = tensor.shape, model.ready.row_columns, model.ready.max_model_len - 1
    if len(shape) == 3 and shape[0] == 1:
        shape = shape[1:]
    if len(shape) != 2 or shape[1] != wanted or not shape[0]:
        raise _wrong(
            name, f"has the shape {list(tensor.shape)[:8]}; wanted [tokens, {wanted}], as this model's rows are"
        )
    if shape[0] > most:
        check_prompt(model, [0] * min(shape[0], most + 1), name)


def _wrong(name: str, what: str) -> ApiError:
    return ApiError(400, f"`{name}` {what}", param=name, code="invalid_value")
