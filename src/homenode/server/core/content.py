"""Parts of messages that are no text: of which kind each is, how every API refuses what the served model cannot take,
the word that stands for it in what a tool gave back, and the part that stands for a picture which the model can see.

The APIs call the same thing by different types; `_KINDS` is the one table of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, NoReturn

from homenode.server.http.failures import ApiError

MediaKind = Literal["image", "audio", "video", "file"]
# Tells that something is left out: a word of the client's own, and its place in the body.
Note = Callable[[str, str], None]

_KINDS: dict[str, MediaKind] = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "output_image": "image",
    "image_embeds": "image",
    "computer_screenshot": "image",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
    "output_audio": "audio",
    "video": "video",
    "video_url": "video",
    "input_video": "video",
    "file": "file",
    "input_file": "file",
    "document": "file",
    "container_upload": "file",
}
_REFUSALS: dict[MediaKind, str] = {
    "image": "an image, which this model cannot see; leave it out",
    "audio": "sound, which this model cannot hear; send what is said as text",
    "video": "a video, which this model cannot see; leave it out",
    "file": "a file that is not plain text, which this model cannot read; send its text",
}
MEDIA_TYPES = frozenset(_KINDS)  # types of parts that are no text
_LONGEST_TYPE = 100  # characters of a client's own word that are repeated


def media_kind(part_type: str) -> MediaKind | None:
    """The kind of a part of this type; None for text, and for what no API has."""
    return _KINDS.get(part_type)


def refuse_media(kind: MediaKind, place: str) -> NoReturn:
    """Raises ApiError 400 for a part at `place` of the body, such as `messages[0].content[1]`, that the served model
    cannot take. Every API answers so, each in the shape of its errors.
    """
    raise ApiError(400, f"`{place}` is {_REFUSALS[kind]}", param=place, code="unsupported_parameter")


class PictureSource(NamedTuple):
    """The origin of a picture: an address, or base64 of its bytes. `place`: of its part in the body."""

    place: str
    url: str = ""
    data: str = ""


_PICTURE = "picture"  # the key of a part for templates under which its source is


def is_seen(part_type: str, sees: bool) -> bool:
    """Return whether a part of this type is a picture, and the served model sees those."""
    return sees and media_kind(part_type) == "image"


def picture_part(place: str, *, url: Any = None, data: Any = None) -> dict[str, Any]:
    """The part that stands for a picture at `place` of the body until its prompt is made: of an address, which may be
    in a table as `url`, or of base64. Raises ApiError 400 where neither is a text.
    """
    if isinstance(url, Mapping):
        url = url.get("url")
    if isinstance(url, str):
        return {"type": "image", _PICTURE: PictureSource(place, url=url)}
    if isinstance(data, str):
        return {"type": "image", _PICTURE: PictureSource(place, data=data)}
    text = f"`{place}` is an image without its address: a data: URL, or one that this server may read"
    raise ApiError(400, text, param=place, code="invalid_value")


def source_part(place: str, source: Any) -> dict[str, Any]:
    """The same of a picture as the Messages API has it: a table that says of what type it is."""
    given = source if isinstance(source, Mapping) else {}
    if given.get("type") == "url":
        return picture_part(f"{place}.source", url=given.get("url"))
    return picture_part(f"{place}.source", data=given.get("data"))


def take_pictures(messages: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[PictureSource]]:
    """The messages as a chat template is given them, and the sources of their pictures in order."""
    found: list[PictureSource] = []
    told = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list) and any(_PICTURE in part for part in content):
            found += [part[_PICTURE] for part in content if _PICTURE in part]
            parts = [{k: v for k, v in part.items() if k != _PICTURE} for part in content]
            message = {**message, "content": parts}
        told.append(dict(message))
    return told, found


def media_word(part_type: str, place: str, note: Note) -> str:
    """The text that stands for a part of a tool's result that is no text, such as `[image]`; `note` hears of it."""
    kind = media_kind(part_type)
    word = part_type[:_LONGEST_TYPE] if kind is None or part_type == "document" else kind
    note(word, place)
    return f"[{word}]"
