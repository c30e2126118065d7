"""The engine's request for one prompt: what all of them have, whichever endpoint asks."""

from __future__ import annotations

from typing import Any

from homenode.engine.request import Request, Urgency
from homenode.logs.request_mark import current_request_mark
from homenode.sampling import SamplingParams
from homenode.server.core.prompts import EncodedPrompt
from homenode.server.keys.caller import caller
from homenode.server.models.served_model import AskedModel


def engine_request(
    asked_model: AskedModel, prompt: EncodedPrompt, params: SamplingParams, priority: int, **own: Any
) -> Request:
    """Return a request that the model's engine was never given before. `own`: fields of `Request` that this endpoint
    has and others have not.
    """
    who, mark = caller(), current_request_mark()
    return Request(
        id=asked_model.model.next_id(),
        prompt_ids=prompt.ids,
        rows=list(prompt.rows),
        second_from=prompt.second_from,
        params=params,
        priority=priority,
        urgency=Urgency.BACKGROUND if who.background else Urgency.USUAL,
        key=who.name,
        adapter=asked_model.adapter,
        name="" if mark is None else mark.request_id,
        **own,
    )
