"""The results of `LLM.embed` and `LLM.score`: vectors, and how near texts are."""

from __future__ import annotations

from collections.abc import Sequence
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt

from homenode.engine.api.fitting_text import encode_fitting
from homenode.engine.api.local import LocalEngine
from homenode.engine.errors import named_error
from homenode.engine.messages import Output, PoolingReady
from homenode.engine.request import Request
from homenode.errors import UserError
from homenode.model.pooling import pair_texts
from homenode.model.tokenizer import Tokenizer
from homenode.sampling import SamplingParams

FloatArray = npt.NDArray[np.float32]


def pooling_of(engine: LocalEngine) -> PoolingReady:
    """Return what the engine makes of texts. UserError where it generates."""
    if engine.ready.pooling is None:
        raise UserError('this model generates text; give LLM(..., runner="pooling") for vectors', param="runner")
    return engine.ready.pooling


def pool(engine: LocalEngine, requests: Sequence[Request]) -> FloatArray:
    """Return what the engine makes of each text, [texts, width]. Raises what the engine says of the first that fails;
    none is left running then.
    """
    sink, rows = SimpleQueue[Output](), dict[int, bytes]()
    engine.submit(requests, sink)
    try:
        while len(rows) < len(requests):
            output = sink.get()
            if output.error is not None:
                raise named_error(output.error_kind, output.error, output.retry_after_s)
            rows[output.id] = output.pooled
    finally:
        if left := [request.id for request in requests if request.id not in rows]:
            engine.abort(left)
    width = pooling_of(engine).width
    found = [np.frombuffer(rows[request.id], "<f4") for request in requests]
    return np.array(found, np.float32).reshape(len(found), width)


def pooling_request(number: int, ids: list[int], arrival: float, second_from: int = 0) -> Request:
    """A request for the vector of a text. `second_from`: see `Request`."""
    params = SamplingParams(max_tokens=0)
    return Request(id=number, prompt_ids=ids, params=params, arrival=arrival, pools=True, second_from=second_from)


def normalised(vectors: FloatArray) -> FloatArray:
    """Return vectors of length 1, but for those that have none."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1.0), np.float32)


def pair_ids(tokenizer: Tokenizer, first: str, second: str, most: int, template: str) -> tuple[list[int], int]:
    """Token ids of two texts that are read together, and where the second begins (see `Request.second_from`).
    CapacityError for a text of more than `most`.
    """
    if template:
        return encode_fitting(tokenizer, "".join(pair_texts(template, first, second)), most, False), 0
    one, other = (encode_fitting(tokenizer, text, most, False) for text in (first, second))
    return tokenizer.surrounding.pair(one, other), tokenizer.surrounding.second_from(one)
