"""A file that a client sends as a form (multipart/form-data), written as it comes to where the API wants it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.requests import Request

from homenode.server.http.exchange import ClientGone
from homenode.server.http.failures import ApiError

_MOST_FIELDS, _LONGEST_FIELD, _LONGEST_HEADER = 16, 4096, 8192
_MOST_AROUND = 2**16  # bytes of a form besides its file
FILE = "file"


class UploadedForm:
    """What came of a form: small fields as texts, and the file through `write`."""

    def __init__(self, write: Callable[[bytes], object], most: int, setting: str) -> None:
        """`most`: bytes of the file, which `setting` says."""
        self._write, self.most, self._setting = write, most, setting
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self._size = self._parts = 0
        self._header, self._value = bytearray(), bytearray()
        self._headers: dict[str, bytes] = {}
        self._name, self._small = "", bytearray()

    def callbacks(self) -> dict[str, Callable[..., None]]:
        """Return what the parser of forms calls."""
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._add(self._header, data[start:end], _LONGEST_HEADER),
            "on_header_value": lambda data, start, end: self._add(self._value, data[start:end], _LONGEST_HEADER),
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_headers,
            "on_part_data": self._data,
            "on_part_end": self._end,
        }

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > _MOST_FIELDS:
            raise _refused(f"the form has more than {_MOST_FIELDS} fields")
        self._headers, self._small = {}, bytearray()

    def _end_header(self) -> None:
        self._headers[bytes(self._header).decode("latin-1").lower()] = bytes(self._value)
        self._header, self._value = bytearray(), bytearray()

    def _end_headers(self) -> None:
        from python_multipart.multipart import parse_options_header

        _, options = parse_options_header(self._headers.get("content-disposition", b""))
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        if self._name == FILE:
            if self.filename is not None:
                raise _refused("the form has several files; send each by itself", FILE)
            self.filename = options.get(b"filename", b"").decode("utf-8", "replace")

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._name != FILE:
            self._add(self._small, data[start:end], _LONGEST_FIELD)
            return
        self._size += end - start
        if self._size > self.most:
            raise self.too_large()
        self._write(data[start:end])

    def _end(self) -> None:
        if self._name != FILE:
            self.fields[self._name] = self._small.decode("utf-8", "replace")

    def too_large(self) -> ApiError:
        """Return the error for a file of more bytes."""
        text = f"the file is larger than {self.most} bytes ({self._setting})"
        return ApiError(413, text, code="request_too_large", headers={"Connection": "close"})

    @staticmethod
    def _add(to: bytearray, data: bytes, most: int) -> None:
        to += data
        if len(to) > most:
            raise _refused(f"a field or header of the form is longer than {most} bytes")


async def read_form(request: Request, form: UploadedForm, chunk_timeout_s: float) -> None:
    """Read a form to its end. Raises ApiError 400, 408, 413 or 415, and ClientGone."""
    from python_multipart.exceptions import FormParserError
    from python_multipart.multipart import MultipartParser, parse_options_header

    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        text = "the file must be sent as Content-Type: multipart/form-data, in the field `file`"
        raise ApiError(415, text, code="unsupported_media_type")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > 18 or int(length) > form.most + _MOST_AROUND:
        raise form.too_large()
    parser = MultipartParser(options[b"boundary"], form.callbacks())  # type: ignore[arg-type]
    try:
        while True:
            message: Any = await asyncio.wait_for(request.receive(), chunk_timeout_s)
            if message["type"] == "http.disconnect":
                raise ClientGone
            if chunk := message.get("body", b""):
                await asyncio.to_thread(parser.write, chunk)
            if not message.get("more_body", False):
                break
        parser.finalize()
    except TimeoutError:
        raise ApiError(408, f"nothing of the file came for {chunk_timeout_s:g} s", code="request_timeout") from None
    except FormParserError as error:
        raise _refused(f"the body is no form: {error}"[:300]) from None
    if form.filename is None:
        raise _refused("the form has no field `file`; send the file in it", FILE)


def _refused(text: str, param: str | None = None) -> ApiError:
    return ApiError(400, text, param=param, code="invalid_value")
