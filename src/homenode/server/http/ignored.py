"""Fields that a request names and the server leaves out: told in a response header, and once in the log."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

from starlette.requests import Request

from homenode.chat.sent_texts import SentText
from homenode.grammars.field_path import FieldPath
from homenode.server.http.failures import ApiError

HEADER = b"x-homenode-ignored"
_LOG = logging.getLogger("homenode.server")
_STRANGE = re.compile(r"[^A-Za-z0-9_.:/@$-]")  # no character that means something within a header, or to a terminal
_LONGEST_NAME = 64
_MOST_NAMES = 64  # of one request in its header
_MOST_TOLD = 1000  # names that the log has told of


class IgnoredNames:
    """The names that requests to one application had, and that were left out."""

    def __init__(self, *, strict: bool = False) -> None:
        """`strict`: a request with such a name is refused."""
        self._strict = strict
        self._told: set[str] = set()

    def begin(self, request: Request) -> None:
        """Before anything of `request` is read."""
        request.state.ignored_names = self
        request.state.ignored = {}

    def note(self, request: Request, name: str, param: str | None) -> None:
        """Note as `note_ignored`."""
        if self._strict:
            named = f"`{param}`" if param and param.endswith(name) else f"`{name}`{f' at `{param}`' if param else ''}"
            text = f"unknown field {named}: it would be ignored, which --strict-requests forbids"
            raise ApiError(400, text, param=param or name, code="unknown_parameter")
        self._tell(request, name, "requests have `%s`, which means nothing here and is ignored; this is told once")

    def note_left_out(self, request: Request, sent: SentText) -> None:
        """Note as `note_left_out` below."""
        if self._strict and not sent.by_template:
            text = f"the chat template does not show `{sent.name}`, which --strict-requests forbids to leave out"
            raise ApiError(400, text, param=sent.name.partition(".")[0], code="invalid_value")
        told = None if sent.by_template else "the chat template does not show `%s` of a request; this is told once"
        self._tell(request, sent.name, told)

    def note_not_kept(self, request: Request, place: FieldPath) -> None:
        """Note as `note_not_kept` below."""
        if self._strict:
            text = f"`{place}`: this cannot be kept, and --strict-requests forbids to leave it out"
            raise ApiError(400, text, param=place.param, code="invalid_value")
        self._tell(request, place.name, "answers are not bound to `%s` of a schema; this is told once")

    def _tell(self, request: Request, name: str, line: str | None) -> None:
        """Tell it in the header of the answer, and the first time as a `line` of the log."""
        shown = _STRANGE.sub("_", name[:_LONGEST_NAME]) or "_"  # a name may be empty, an entry of a header not
        if len(request.state.ignored) < _MOST_NAMES:
            request.state.ignored[shown] = None
        if line is not None and shown not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(shown)
            _LOG.warning(line, shown)


def note_ignored(request: Request, name: str, param: str | None = None) -> None:
    """Tell that something of a request is left out: `name` is a word of the client's own, such as a field's name or the
    type of a tool; `param` is where it is in the body.

    Raises ApiError 400 where the server was started with --strict-requests.
    """
    names: IgnoredNames = request.state.ignored_names
    names.note(request, name, param)


def note_left_out(request: Request, left_out: Iterable[SentText]) -> None:
    """Tell what of a conversation the chat template does not show. Raises as `note_ignored`, except for what templates
    leave out on purpose.
    """
    names: IgnoredNames = request.state.ignored_names
    for sent in left_out:
        names.note_left_out(request, sent)


def note_not_kept(request: Request, places: Iterable[FieldPath]) -> None:
    """Tell which words of schemas answers are not bound to. Raises as `note_ignored`."""
    names: IgnoredNames = request.state.ignored_names
    for place in places:
        names.note_not_kept(request, place)


def ignored_headers(request: Request) -> list[tuple[bytes, bytes]]:
    """The header of a response to `request`; none where nothing was left out."""
    ignored: dict[str, None] = getattr(request.state, "ignored", {})
    return [(HEADER, ", ".join(ignored).encode())] if ignored else []
