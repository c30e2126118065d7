"""JSON bodies to msgspec types, and what msgspec says about a wrong one, said to the client: which field, what is wrong
with it, and whether it is only missing here.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import msgspec

from homenode.server.http.failures import ApiError
from homenode.server.http.unknown_fields import KnownFields, UnknownField

T = TypeVar("T")
# Makes a body the type that it was made for, and adds what it does not know to the list.
BodyDecoder = Callable[[bytes, list[UnknownField]], T]

_WHERE = re.compile(r" - at `(?P<key>key` in `)?\$\.?(?P<path>[^`]*)`$")
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`", re.DOTALL)
_UNKNOWN, _A_FLOAT = re.compile("Object contains unknown field `"), "got `float`"
_VALUE = re.compile(r"Invalid (?:enum )?value (?P<value>.*)", re.DOTALL)
_PART = re.compile(r"messages\[\d+\]\.content\[\d+\]\.\w+")
_TEXT_ONLY = "this model takes parts of type 'text' only"
_LONGEST_ECHO = 200  # characters of a client's own words repeated in a message


@dataclass(frozen=True)
class FieldHints:
    """Hints that an API gives clients about its fields besides their types.

    `remedies`: by a field's name, what to do about a value that it does not take. `unsupported`: by the name of a field
    that the API has elsewhere and this server has not, what to do instead.
    """

    remedies: Mapping[str, str]
    unsupported: Mapping[str, str]


def decode_as(kind: type[T], hints: FieldHints) -> BodyDecoder[T]:
    """A decoder of JSON bodies to the msgspec type `kind`. Where its structs forbid unknown fields, at every depth,
    such fields of a body are left out and told, but for those that `hints` refuses. The decoder raises ApiError 400.
    """
    decoder = cache(lambda: msgspec.json.Decoder(kind))  # with the first body: few of all kinds ever come
    known = KnownFields(kind)

    def decode(body: bytes, unknown: list[UnknownField]) -> T:
        body = body.removeprefix(codecs.BOM_UTF8)  # which some editors write before a text
        try:
            try:
                return decoder().decode(body)
            except msgspec.ValidationError as error:
                if not _UNKNOWN.match(str(error)) and _A_FLOAT not in str(error):
                    raise
            value, found = known.strip(msgspec.json.decode(body))
            if field := next((field for field in found if field.place in hints.unsupported), None):
                raise _unsupported(field.place, hints.unsupported[field.place])
            unknown += found
            try:
                return msgspec.convert(value, kind, str_keys=True)
            except msgspec.ValidationError as error:
                if _A_FLOAT not in str(error):
                    raise
            return msgspec.convert(_whole_numbers(value), kind, str_keys=True)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _from_decoding(error, hints) from None

    return decode


def convert_as(kind: type[T], hints: FieldHints) -> Callable[[Any, str, Callable[[str, str], None]], T]:
    """Converts a part of a body, which is read by itself, to the msgspec type `kind`. What it returns takes the part,
    its place such as `input[2]`, and who hears of the names and places of unknown fields; it raises ApiError 400.
    """
    known = KnownFields(kind)

    def convert(part: Any, place: str, note: Callable[[str, str], None]) -> T:
        value, found = known.strip(part)
        for field in found:
            note(field.name, f"{place}.{field.place}")
        try:
            try:
                return msgspec.convert(value, kind, str_keys=True)
            except msgspec.ValidationError as error:
                if _A_FLOAT not in str(error):
                    raise
            return msgspec.convert(_whole_numbers(value), kind, str_keys=True)
        except msgspec.ValidationError as error:
            raise _from_decoding(error, hints, place) from None

    return convert


def _whole_numbers(value: Any) -> Any:
    """JSON has one kind of number, so 3.0 is an integer where one is wanted; some clients know no other way to write
    it.
    """
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, list):
        return [_whole_numbers(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _whole_numbers(entry) for key, entry in value.items()}
    return value


def _from_decoding(error: Exception, hints: FieldHints, place: str = "") -> ApiError:
    """The answer for a body that is not JSON (DecodeError, UnicodeDecodeError, RecursionError) or not of the right
    shape (ValidationError). `place`: of the part of a body that it is about.
    """
    if not isinstance(error, msgspec.ValidationError):
        reason = "too deeply nested" if isinstance(error, RecursionError) else str(error)
        return ApiError(400, f"the body is not valid JSON: {reason[:_LONGEST_ECHO]}", code="invalid_json")
    message = str(error)
    where = _WHERE.search(message)
    reason, path = (message[: where.start()], where["path"].removesuffix("[...]")) if where else (message, "")
    path = ".".join(filter(None, (place, path))).replace(".[", "[")
    if field := _MISSING.fullmatch(reason):
        path = f"{path}.{field['name']}" if path else field["name"]
        return ApiError(400, f"the required field `{path}` is missing", param=path, code="missing_required_parameter")
    if not path:
        return ApiError(400, f"the body must be a JSON object: {_sentence(reason)}", code="invalid_type")
    return _wrong_value(hints, path, f"a key of `{path}`" if where and where["key"] else f"`{path}`", reason)


def _wrong_value(hints: FieldHints, path: str, subject: str, reason: str) -> ApiError:
    value = _VALUE.match(reason)
    if value and _PART.fullmatch(path):
        return _unsupported(path, f"a part of type {value['value'][:_LONGEST_ECHO]}; {_TEXT_ONLY}")
    parts = re.split(r"[.\[]", path)
    for name in (parts[0], parts[-1]):
        if name in hints.unsupported:
            return _unsupported(path, hints.unsupported[name])
    remedy = f"; {hints.remedies[path]}" if path in hints.remedies else ""
    return ApiError(400, f"{subject}: {_sentence(reason)}{remedy}", param=path, code="invalid_value")


def _unsupported(path: str, hint: str) -> ApiError:
    return ApiError(400, f"`{path}` is not supported: {hint}", param=path, code="unsupported_parameter")


def _sentence(text: str) -> str:
    return (text[:1].lower() + text[1:])[:_LONGEST_ECHO]
