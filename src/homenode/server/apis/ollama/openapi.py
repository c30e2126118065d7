"""Parts that the types of the Ollama API cannot say in the OpenAPI document: the names of the model, what it cannot do,
and fields that depend on each other.
"""

from __future__ import annotations

from typing import Any

from homenode.server.apis.ollama.embed import OllamaEmbeddingsRequest, OllamaEmbedRequest
from homenode.server.apis.ollama.keep_alive import kept_schema
from homenode.server.apis.ollama.names import tagged
from homenode.server.apis.ollama.options import IDLE_OPTIONS, OllamaOptions
from homenode.server.apis.ollama.request import (
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaMessage,
    OllamaShowRequest,
)
from homenode.server.core.state import ServerState

_NONE: dict[str, Any] = {"anyOf": [{"type": "null"}, {"type": "array", "maxItems": 0}], "default": None}
_EMPTY: dict[str, Any] = {"anyOf": [{"type": "null"}, {"const": ""}], "default": None}
_OF_TEMPLATES = ["messages", "tools", "add_generation_prompt", "continue_final_message"]


def tighten(components: dict[str, Any], state: ServerState) -> None:
    """Adds to the schemas, by type name."""
    names = list(dict.fromkeys((*state.limits.names, *map(tagged, state.limits.names))))
    for kind in (OllamaChatRequest, OllamaGenerateRequest):
        _tighten_asked(components[kind.__name__], names, thinks=state.limits.has_thoughts)
    _tighten_generate(components[OllamaGenerateRequest.__name__], state)
    if "image" not in state.limits.taken:
        for name in (OllamaMessage.__name__, OllamaGenerateRequest.__name__):
            components[name]["properties"]["images"] = _NONE
    for name in (OllamaEmbedRequest.__name__, OllamaEmbeddingsRequest.__name__):
        components[name]["properties"]["model"] = {"enum": names}
    if state.limits.vector_width is not None:
        dimensions = components[OllamaEmbedRequest.__name__]["properties"]["dimensions"]
        dimensions["anyOf"][0]["maximum"] = state.limits.vector_width
    if state.config.strict_requests:
        _tighten_known(components, state)
    show = components[OllamaShowRequest.__name__]
    either: dict[str, Any] = {"enum": names}
    show["properties"] |= {name: {"anyOf": [either, {"type": "null"}], "default": None} for name in ("model", "name")}
    show["anyOf"] = [{"required": [name], "properties": {name: either}} for name in ("model", "name")]


def _tighten_known(components: dict[str, Any], state: ServerState) -> None:
    """Say what has an effect, as --strict-requests refuses what has none."""
    options = components[OllamaOptions.__name__]["properties"]
    options |= {name: {"enum": list(idle), "default": None} for name, idle in IDLE_OPTIONS.items()}
    options["num_ctx"]["anyOf"][0]["maximum"] = state.limits.max_model_len
    for kind in (OllamaChatRequest, OllamaGenerateRequest, OllamaEmbedRequest, OllamaEmbeddingsRequest):
        components[kind.__name__]["properties"]["keep_alive"] = kept_schema(state)
    components[OllamaGenerateRequest.__name__]["allOf"].append(_not_beside("suffix", "system"))


def _tighten_generate(schema: dict[str, Any], state: ServerState) -> None:
    fields = schema["properties"]
    fields["context"]["anyOf"][0]["items"]["maximum"] = state.limits.vocab_size - 1
    if not state.limits.fills_middle:
        fields["suffix"] = _EMPTY
    for own, others in (("raw", ("template", "system", "context")), ("suffix", ("template", "context"))):
        schema["allOf"].append(_not_beside(own, *others))


def _not_beside(own: str, *others: str) -> dict[str, Any]:
    """One field says nothing, or the others do not."""
    without = {"properties": {own: {"enum": [False, None, ""]}}}
    alone: dict[str, Any] = {"properties": {name: {"enum": [None, "", []]} for name in others}}
    return {"anyOf": [without, alone]}


def _tighten_asked(schema: dict[str, Any], names: list[str], *, thinks: bool) -> None:
    fields = schema["properties"]
    fields["model"] = {"enum": names}
    fields["chat_template_kwargs"]["anyOf"][0]["propertyNames"] = {"not": {"enum": _OF_TEMPLATES}}
    if not thinks:
        fields["think"] = {"enum": [False, None], "default": None}
    none = {"properties": {"top_logprobs": {"enum": [0, None]}}}
    shown = {"properties": {"logprobs": {"const": True}}, "required": ["logprobs"]}
    schema["allOf"] = [{"anyOf": [none, shown]}]
