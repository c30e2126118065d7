"""A decoder of bodies in which an unknown field is an error: a question that was misspelt would be answered wrongly."""

from __future__ import annotations

from typing import TypeVar

from homenode.server.http.decoding import BodyDecoder, FieldHints, decode_as
from homenode.server.http.failures import ApiError
from homenode.server.http.unknown_fields import UnknownField

T = TypeVar("T")


def decode_strictly(kind: type[T]) -> BodyDecoder[T]:
    """A decoder to the msgspec type `kind`, whose structs forbid unknown fields. It raises ApiError 400."""
    decode = decode_as(kind, FieldHints({}, {}))

    def strict(body: bytes, _unknown: list[UnknownField]) -> T:
        found: list[UnknownField] = []
        value = decode(body, found)
        if found:
            text = f"`{found[0].place}` is no field of this request; leave it out"
            raise ApiError(400, text, param=found[0].place, code="unknown_parameter")
        return value

    return strict


def refuse(place: str, reason: str) -> ApiError:
    """The error for the field at `place` of the body."""
    return ApiError(400, f"`{place}` {reason}", param=place, code="invalid_value")
