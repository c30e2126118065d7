"""Parts of messages that are no text: of which kind each is, how every API refuses what the served model cannot take,
the word that stands for it in what a tool gave back, and the part that stands for what the model can take.

The APIs call the same thing by different types; `server/models/media.py` has the one table of them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from homenode.server.http.failures import ApiError
from homenode.server.models.media import MEDIA, NO_MEDIA, MediaKind, Taken, media_input

# Tells that something is left out: a word of the client's own, and its place in the body.
Note = Callable[[str, str], None]

_KINDS: dict[str, MediaKind] = {name: kind for kind, medium in MEDIA.items() for name in medium.types}
MEDIA_TYPES = frozenset(_KINDS)  # types of parts that are no text
_LONGEST_TYPE = 100  # characters of a client's own word that are repeated


def media_kind(part_type: str) -> MediaKind | None:
    """The kind of a part of this type; None for text, and for what no API has."""
    return _KINDS.get(part_type)


def taken_kind(part_type: str, taken: Taken) -> MediaKind | None:
    """The kind of a part of this type, if the served model takes it."""
    kind = media_kind(part_type)
    return kind if kind in taken else None


def read_types(types: Iterable[str], taken: Taken) -> list[str]:
    """Those of some types of parts that are text, or media that the served model takes."""
    return [each for each in types if media_kind(each) is None or taken_kind(each, taken) is not None]


def refuse_media(kind: MediaKind, place: str) -> NoReturn:
    """Raises ApiError 400 for a part at `place` of the body, such as `messages[0].content[1]`, that the served model
    cannot take. Every API answers so, each in the shape of its errors.
    """
    raise ApiError(400, f"`{place}` is {MEDIA[kind].refusal}", param=place, code="unsupported_parameter")


class MediaSource(NamedTuple):
    """The origin of a medium: an address, or base64 of its bytes. `place`: of its part in the body. `mark`: the text
    that stands for it in its prompt; empty: the one that the chat template writes for its part.
    """

    kind: MediaKind
    place: str
    url: str = ""
    data: str = ""
    mark: str = ""


_SOURCE = "media_source"  # the key of a part for templates under which its source is


def media_part(kind: MediaKind, place: str, part: object) -> dict[str, Any]:
    """The part that stands for a medium at `place` of the body until its prompt is made, of a part as an API has it:
    its address or base64 of its bytes is in a field of the medium, or in a `source`, as the Messages API has it.
    Raises ApiError 400 where neither is a text.
    """
    given = next((own for name in media_input(kind).fields if (own := getattr(part, name, None)) is not None), None)
    if given is None and (source := getattr(part, "source", None)) is not None:
        given, place = source, f"{place}.source"
    url = given if isinstance(given, str) else _entry(given, "url")
    if isinstance(url, str):
        return {"type": kind, _SOURCE: MediaSource(kind, place, url=url)}
    return data_part(kind, place, _entry(given, "data"))


def data_part(kind: MediaKind, place: str, data: object) -> dict[str, Any]:
    """The same of base64 of its bytes."""
    if isinstance(data, str):
        return {"type": kind, _SOURCE: MediaSource(kind, place, data=data)}
    one = f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
    text = f"`{place}` is {one} without its address: a data: URL, or one that this server may read"
    raise ApiError(400, text, param=place, code="invalid_value")


def _entry(given: object, name: str) -> object:
    return given.get(name) if isinstance(given, Mapping) else getattr(given, name, None)


def take_media(
    messages: Sequence[Mapping[str, Any]], marked: Taken = NO_MEDIA
) -> tuple[list[dict[str, Any]], list[MediaSource]]:
    """The messages as a chat template is given them, and the sources of their media in order. `marked`: the media of
    which the template knows no parts: marks stand for them in texts. Nobody outside can guess a mark, and it has no
    name of a control token in it, which would be hidden as those of other texts are.
    """
    key = secrets.token_hex(16)
    marks = {kind: f"{kind}{key}" for kind in marked}
    found: list[MediaSource] = []
    told = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list) and any(_SOURCE in part for part in content):
            sources = [part[_SOURCE] for part in content if _SOURCE in part]
            found += [source._replace(mark=marks.get(source.kind, "")) for source in sources]
            message = {**message, "content": [_told(part, marks) for part in content]}
        told.append(dict(message))
    return told, found


def _told(part: Mapping[str, Any], marks: Mapping[MediaKind, str]) -> dict[str, Any]:
    """A part as a chat template is given it."""
    source = part.get(_SOURCE)
    if source is not None and (mark := marks.get(source.kind)) is not None:
        return {"type": "text", "text": mark}
    return {k: v for k, v in part.items() if k != _SOURCE}


def media_word(part_type: str, place: str, note: Note) -> str:
    """The text that stands for a part of a tool's result that is no text, such as `[image]`; `note` hears of it."""
    kind = media_kind(part_type)
    word = part_type[:_LONGEST_TYPE] if kind is None or part_type == "document" else kind
    note(word, place)
    return f"[{word}]"
