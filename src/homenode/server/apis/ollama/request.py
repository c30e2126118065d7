"""The bodies of requests to the Ollama API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from homenode.server.apis.ollama.keep_alive import KeepAlive
from homenode.server.apis.ollama.options import OllamaOptions
from homenode.server.core.generation_fields import TokenIds
from homenode.server.core.kv_transfer import KvTransferParams
from homenode.server.http.decoding import FieldHints

_INT32 = 2**31 - 1

OllamaModelName = Annotated[str, Meta(min_length=1)]
OllamaThink = bool | Literal["minimal", "low", "medium", "high", "xhigh", "max"]
OllamaToolName = Annotated[str, Meta(pattern=r"^[\w.:/-]{1,256}$")]


class OllamaFunction(Struct, forbid_unknown_fields=True, kw_only=True):
    """A function that the model may call. `parameters`: the JSON schema of its arguments."""

    name: OllamaToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class OllamaTool(Struct, forbid_unknown_fields=True, kw_only=True):
    """A tool."""

    type: Literal["function"] | None = None
    function: OllamaFunction


class OllamaCalled(Struct, forbid_unknown_fields=True, kw_only=True):
    """A function that was called, with its arguments."""

    name: str
    arguments: dict[str, Any] | str | None = None
    index: int | None = None
    description: str | None = None


class OllamaCall(Struct, forbid_unknown_fields=True, kw_only=True):
    """A call in the history."""

    function: OllamaCalled
    id: str | None = None
    type: str | None = None


class OllamaMessage(Struct, forbid_unknown_fields=True, kw_only=True):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    name: str | None = None


class OllamaAsked(Struct, forbid_unknown_fields=True, kw_only=True):
    """The part that requests for a chat and for a text share. Fields from `thinking_token_budget` on are this server's
    own.
    """

    model: OllamaModelName
    stream: bool | None = None  # null: yes
    format: Literal["", "json"] | dict[str, Any] | None = None
    options: OllamaOptions | None = None
    keep_alive: KeepAlive | None = None
    think: OllamaThink | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    truncate: bool | None = None
    thinking_token_budget: Annotated[int, Meta(ge=0, le=_INT32)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=_INT32)] | None = None
    cache_salt: Annotated[str, Meta(max_length=128)] | None = None
    speculative: bool | None = None  # false: no token of the answer is drafted
    kv_transfer_params: KvTransferParams | None = None


class OllamaChatRequest(OllamaAsked, kw_only=True):
    """Body of POST /api/chat. Without messages the model is loaded, which it is. `truncate`: of a conversation that is
    longer than the context the oldest turns are dropped, and what then is too long is cut, unless this is false.
    """

    messages: Annotated[list[OllamaMessage], Meta(max_length=4096)] | None = None
    tools: Annotated[list[OllamaTool], Meta(max_length=1024)] | None = None


class OllamaGenerateRequest(OllamaAsked, kw_only=True):
    """Body of POST /api/generate. Without a prompt the model is loaded, which it is. `raw`: the prompt is what the
    model sees, not a message. `suffix`: what comes behind the text that is wanted, of which the prompt is the
    beginning. `template`: makes the prompt in place of the model's chat template (`go_template.py`). `context`: the
    tokens of the conversation before, as an answer had them. `truncate`: a prompt that is
    longer than the context is cut, unless this is false.
    """

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None
    suffix: str | None = None
    template: Annotated[str, Meta(max_length=65536)] | None = None
    context: TokenIds | None = None
    images: list[str] | None = None


class OllamaShowRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /api/show. `name` is the older word for `model`."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None


HINTS = FieldHints({}, {})
