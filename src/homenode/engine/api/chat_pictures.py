"""Pictures in conversations of a Python program: a part `{"type": "image", "image": PATH or BYTES}` of a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from homenode.engine.encoder.picture_places import marked_places, marker_of, placed_rows, with_pictures
from homenode.engine.encoder.setup import PictureParts, picture_parts
from homenode.engine.inputs import PlacedRows
from homenode.engine.messages import EngineReady
from homenode.errors import UserError
from homenode.model.pictures.decoded import PictureError
from homenode.model.tokenizer import Tokenizer
from homenode.units import format_count

_MOST_BYTES = 32 << 20  # of a picture's file


class SeenPrompt(NamedTuple):
    """Token ids, and the rows that stand in the places of pictures."""

    ids: list[int]
    rows: list[PlacedRows]


class ChatPictures:
    """Looks at the pictures of conversations, one after the other."""

    def __init__(self, path: Path, ready: EngineReady) -> None:
        """`path`: the model. UserError where it sees none, UnsupportedError and CheckpointError where it cannot."""
        parts = picture_parts(path, ready)
        if parts is None:
            raise UserError(f"the model {ready.model} sees no images; leave them out", param="image")
        self._parts: PictureParts = parts

    def close(self) -> None:
        """End the processes."""
        self._parts.decoder.close()
        self._parts.encoder.close()

    def see(self, tokenizer: Tokenizer, text: str, pictures: Sequence[bytes]) -> SeenPrompt:
        """The prompt that the chat template wrote as `text`, with its pictures. UserError for one that cannot be read,
        or that the template shows no place for.
        """
        family = self._parts.family
        marker = marker_of(family, tokenizer.token_text)
        places = marked_places(text, marker)
        if len(places) != len(pictures):
            shown = f"{format_count(len(places), 'place')} for {format_count(len(pictures), 'image')}"
            raise UserError(f"the chat template has written {shown}; leave {marker!r} out of texts", param="image")
        layouts, rows = [], []
        for number, data in enumerate(pictures):
            try:
                found = self._parts.decoder.decode(data, alone=len(pictures) == 1)
            except PictureError as error:
                raise UserError(f"image {number + 1} cannot be read: {error}", param="image") from None
            layouts.append(found.layout)
            rows.append(self._parts.encoder.encode(found))
        whole = with_pictures(text, places, layouts, family, tokenizer.token_text)
        ids = tokenizer.encode_chat(whole)
        placed = placed_rows(family.placeholder, ids, rows, 0)
        if isinstance(placed, int):
            count = format_count(sum(map(len, rows)), "row")
            raise UserError(f"the prompt has {format_count(placed, 'place')} for {count} of images", param="image")
        return SeenPrompt(ids, placed)


def without_pictures(messages: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[bytes]]:
    """The messages as a chat template is given them, and the bytes of their pictures in order. UserError for a file
    that cannot be read.
    """
    told, found = [], []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            found += [_bytes_of(part["image"]) for part in content if _is_picture(part)]
            parts = [{"type": "image"} if _is_picture(part) else part for part in content]
            message = {**message, "content": parts}
        told.append(dict(message))
    return told, found


def _is_picture(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "image" and "image" in part


def _bytes_of(image: Any) -> bytes:
    if isinstance(image, bytes):
        return image
    if not isinstance(image, str | Path):
        raise UserError(f"an image is a {type(image).__name__}; give the path of a file, or its bytes", param="image")
    try:
        with Path(image).open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UserError(f"the image {image} cannot be read: {error.strerror}", param="image") from None
    if len(data) > _MOST_BYTES:
        raise UserError(
            f"the image {image} has more than {_MOST_BYTES >> 20} MiB, the most that is taken", param="image"
        )
    return data
