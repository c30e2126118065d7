"""Parts that the types of requests for vectors and scores cannot say in the OpenAPI document: how much of a text is
taken.
"""

from __future__ import annotations

from typing import Any

from homenode.server.core.model_limits import ModelLimits


def tighten_kept_tokens(schema: dict[str, Any], limits: ModelLimits) -> None:
    """Say what `kept_tokens` takes, for the schema of a request."""
    kept = schema["properties"]["truncate_prompt_tokens"]["anyOf"][0]
    kept |= {"maximum": limits.most_prompt_tokens, "not": {"const": 0}}


def tighten_input(schema: dict[str, Any], limits: ModelLimits, *, optional: bool = False) -> None:
    """The forms of `input`. A text may be empty where there are special tokens around it. `optional`: it may be null,
    as a conversation may be there instead.
    """

    def forms(shortest: int) -> dict[str, Any]:
        text = {"type": "string", "minLength": shortest}
        token = {"type": "integer", "minimum": 0, "maximum": limits.vocab_size - 1}
        ids = {"type": "array", "items": token, "minItems": 1, "maxItems": limits.most_prompt_tokens}
        most = limits.most_texts
        several = ({"type": "array", "items": each, "minItems": 1, "maxItems": most} for each in (text, ids))
        return {"anyOf": [text, ids, *several, *([{"type": "null"}] if optional else [])]}

    surrounded = limits.takes_empty_text
    schema["properties"]["input"] = forms(0 if surrounded else 1)
    if surrounded:
        added = {"properties": {"add_special_tokens": {"enum": [True, None]}}}
        schema.setdefault("allOf", []).append({"anyOf": [added, {"properties": {"input": forms(1)}}]})
