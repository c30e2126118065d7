"""Parts of messages that are no text: of which kind each is, how every API refuses what the served model cannot take,
and the word that stands for it in what a tool gave back.

The APIs call the same thing by different types; `_KINDS` is the one table of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NoReturn

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


def media_word(part_type: str, place: str, note: Note) -> str:
    """The text that stands for a part of a tool's result that is no text, such as `[image]`; `note` hears of it."""
    kind = media_kind(part_type)
    word = part_type[:_LONGEST_TYPE] if kind is None or part_type == "document" else kind
    note(word, place)
    return f"[{word}]"
