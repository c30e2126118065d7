"""Large frames from an engine, decoded some at a time: the scores of a long prompt are millions of objects.

A frame with them takes a second to decode, and the interpreter's lock is held by each call of the decoder. So they are
cut into runs first, without making objects of them, and other threads run between two runs.
"""

from __future__ import annotations

from typing import Any

import msgspec

from homenode.engine.messages import (
    EngineLoading,
    EngineReady,
    EngineStats,
    Fatal,
    FreeCpusChanged,
    Heartbeat,
    Output,
    Outputs,
    RequestList,
    ServingChanged,
    ToFront,
)
from homenode.engine.request import TokenLogprob
from homenode.errors import PeerError
from homenode.net.message_frames import decode_body

LARGE_FRAME = 2**18  # bytes; smaller ones are decoded in milliseconds
_AT_ONCE = 1024  # prompt tokens whose scores are decoded in one call
_NOTHING = msgspec.Raw(b"")


class _OutputWithRawScores(Output, frozen=True, omit_defaults=True):
    prompt_logprobs: msgspec.Raw = _NOTHING  # type: ignore[assignment]  # as it stands in the frame


class _OutputsWithRawScores(msgspec.Struct, frozen=True, tag="Outputs"):
    outputs: list[_OutputWithRawScores]


_Large = (
    EngineLoading
    | EngineReady
    | Heartbeat
    | RequestList
    | _OutputsWithRawScores
    | EngineStats
    | ServingChanged
    | FreeCpusChanged
    | Fatal
)


def decode_large_body(body: bytes) -> ToFront:
    """Decode as `decode_body(body, ToFront)`, for a thread beside the event loop. PeerError for what is no message."""
    message: Any = decode_body(body, _Large)
    if not isinstance(message, _OutputsWithRawScores):
        return message  # type: ignore[no-any-return]
    return Outputs([_with_scores(output) for output in message.outputs])


def _with_scores(output: _OutputWithRawScores) -> Output:
    values = {name: getattr(output, name) for name in output.__struct_fields__}
    return Output(**{**values, "prompt_logprobs": _scores(output.prompt_logprobs)})


def _scores(raw: msgspec.Raw) -> list[TokenLogprob | None] | None:
    try:
        entries = msgspec.msgpack.decode(raw, type=list[msgspec.Raw] | None) if bytes(raw) else None
        if entries is None:
            return None
        scores: list[TokenLogprob | None] = []
        for at in range(0, len(entries), _AT_ONCE):
            run = msgspec.msgpack.encode(entries[at : at + _AT_ONCE])
            scores += msgspec.msgpack.decode(run, type=list[TokenLogprob | None])
        return scores
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise PeerError(f"the scores of a prompt are nothing this end understands: {error}") from error
