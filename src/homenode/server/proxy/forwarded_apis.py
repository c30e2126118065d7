"""The APIs whose requests are forwarded to a prefill and a decode server: where each has its prompt, and what its
streams look like. Pure.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from homenode.server.apis.anthropic.answer import messages_failure
from homenode.server.apis.anthropic.errors import messages_error
from homenode.server.apis.ollama.answer import ollama_failure
from homenode.server.apis.ollama.errors import ollama_error
from homenode.server.apis.responses.answer import responses_failure
from homenode.server.http.failures import ApiError, ErrorShape
from homenode.server.http.sse import EVENTS, LINES, StreamForm, event

_UNIT_BYTES = 4  # of text, that count as a token
_MOST_UNITS = 1 << 16  # of a prompt's beginning that routing looks at
_BILLING_LINE = re.compile(rb'x-anthropic-billing-header:[^"\\]*')  # which never reaches a prompt
_DONE = b"data: [DONE]"

Fields = Mapping[str, msgspec.Raw]
Prompts = tuple[int, Sequence[int], int]


def _failure(error: ApiError) -> bytes:
    return event(error.body)


def _is_done(last: bytes) -> bool:
    return last.rstrip(b"\r\n").endswith(_DONE)


@dataclass(frozen=True)
class ForwardedApi:
    """`name`: for salts; `prompt_units`: of the fields of a body, how many prompts there are (0 when it cannot be
    told), and the units and tokens of a single one.

    `streams`: whether the answer is a stream, by the value of the field `stream`. `unstreamed`: fields of a body that
    asks for a whole answer. `form`: of a stream; `is_last`: whether an event of it says that the answer is complete;
    `failure`: the event for an error; `label`: what stands before the body of an error where that becomes an event.
    `error_shape`: of errors, None: as the OpenAI API has them. `direct`: why no request of it is handed over; None:
    they are.
    """

    name: bytes
    prompt_units: Callable[[Fields], Prompts]
    streams: Callable[[Any], bool] = lambda stream: stream is True
    unstreamed: Mapping[str, Any] = field(default_factory=dict)
    form: StreamForm = EVENTS
    is_last: Callable[[bytes], bool] = _is_done
    failure: Callable[[ApiError], bytes] = _failure
    label: bytes = b""
    error_shape: ErrorShape | None = None
    direct: str | None = None


def value_of(fields: Fields, name: str) -> Any:
    """The value of a field; None where there is none, or none that can be read."""
    raw = fields.get(name)
    try:
        return None if raw is None else msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _prompt_units(prompt: Any) -> Prompts:
    """Return how many prompts there are, 0 when it cannot be told, and the units and tokens of a single one."""
    if isinstance(prompt, str):
        return 1, *_text_units(prompt.encode("utf-8", "surrogatepass"))
    if not isinstance(prompt, list) or not prompt:
        return 0, (), 0
    if all(type(entry) is int for entry in prompt):
        return (1, prompt[:_MOST_UNITS], len(prompt)) if all(0 <= entry < 2**31 for entry in prompt) else (0, (), 0)
    return _prompt_units(prompt[0]) if len(prompt) == 1 else (len(prompt), (), 0)


def _text_units(text: bytes) -> tuple[Sequence[int], int]:
    tokens = -(-len(text) // _UNIT_BYTES)
    whole = text[: min(len(text) // _UNIT_BYTES, _MOST_UNITS) * _UNIT_BYTES]
    return array("I", whole).tolist(), tokens


def _of_fields(*names: str) -> Callable[[Fields], Prompts]:
    """One prompt, made of these fields in their order."""
    return lambda fields: (1, *_text_units(b"".join(bytes(fields.get(name, b"")) for name in names)))


def _messages_units(fields: Fields) -> Prompts:
    text = b"".join(bytes(fields.get(name, b"")) for name in ("tools", "system", "messages"))
    return 1, *_text_units(_BILLING_LINE.sub(b"", text))


def _is_message_stop(last: bytes) -> bool:
    return last.startswith(b"event: message_stop")


def _is_response_end(last: bytes) -> bool:
    return last.startswith((b"event: response.completed", b"event: response.incomplete"))


def _is_last_infill(last: bytes) -> bool:
    return _is_true(last.removeprefix(b"data: "), "stop")


def _is_done_line(last: bytes) -> bool:
    return _is_true(last, "done")


def _is_true(text: bytes, name: str) -> bool:
    """Return whether the text is an object in which this is true."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return isinstance(found, dict) and found.get(name) is True


def _ollama(name: bytes, *fields: str) -> ForwardedApi:
    return ForwardedApi(
        name,
        _of_fields(*fields),
        streams=lambda stream: stream is not False,
        unstreamed={"stream": False},
        form=LINES,
        is_last=_is_done_line,
        failure=ollama_failure,
        error_shape=ollama_error,
    )


CHAT_COMPLETIONS = ForwardedApi(b"chat", _of_fields("tools", "functions", "messages"))
COMPLETIONS = ForwardedApi(b"text", lambda fields: _prompt_units(value_of(fields, "prompt")))
MESSAGES = ForwardedApi(
    b"messages",
    _messages_units,
    is_last=_is_message_stop,
    failure=messages_failure,
    label=b"event: error\n",
    error_shape=messages_error,
)
RESPONSES = ForwardedApi(
    b"items",
    _of_fields("tools", "instructions", "input"),
    unstreamed={"background": False, "store": False},
    is_last=_is_response_end,
    failure=responses_failure,
    label=b"event: error\n",
)
OLLAMA_CHAT = _ollama(b"ollama-chat", "tools", "messages")
OLLAMA_GENERATE = _ollama(b"ollama-generate", "system", "prompt")
INFILL = ForwardedApi(
    b"infill", _of_fields("input_extra", "input_prefix", "prompt"), is_last=_is_last_infill, direct="infill"
)
