"""Prompts with pictures: each is encoded, the name that the chat template wrote for it becomes what its family writes,
and its rows stand where the placeholders are.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import NamedTuple

from homenode.engine.inputs import ROW_DIGEST_BYTES, PlacedRows, PromptRows
from homenode.errors import HomenodeError
from homenode.model.pictures.decoded import PictureError
from homenode.server.core.content import PictureSource, refuse_media
from homenode.server.core.picture_bytes import bad_picture, picture_bytes
from homenode.server.http.failures import ApiError
from homenode.server.models.picture_work import EncodedPicture, PictureWork
from homenode.server.models.served_model import ServedModel
from homenode.units import format_count


class SeenText(NamedTuple):
    """A prompt's text with placeholders in the places of pictures, and the rows that stand for them."""

    text: str
    rows: Sequence[PromptRows]


def check_pictures(model: ServedModel, sources: Sequence[PictureSource]) -> None:
    """Raises ApiError 400 for more pictures than a request may have, and for any where the model sees none."""
    if sources and model.pictures is None:
        refuse_media("image", sources[0].place)
    most = model.config.limit_images
    if len(sources) > most:
        text = f"the request has {format_count(len(sources), 'image')}; at most {most} are taken (--limit-images)"
        raise ApiError(400, text, param=sources[most].place, code="invalid_value")


async def see_pictures(model: ServedModel, text: str, sources: Sequence[PictureSource]) -> SeenText:
    """The text of a prompt as its chat template wrote it, with its pictures. Raises ApiError 400 for a picture that
    cannot be read, and for a text that names the place of a picture where none is.
    """
    work = model.pictures
    assert work is not None  # `check_pictures` has looked
    places = _places(model, work, text, sources)
    alone = len(sources) == 1
    seen = await asyncio.gather(*(_encoded(model, work, source, alone) for source in sources), return_exceptions=True)
    for each in seen:
        if isinstance(each, BaseException):
            raise each
    pictures = [each for each in seen if isinstance(each, EncodedPicture)]
    parts, at = [], 0
    for number, (place, picture) in enumerate(zip(places, pictures, strict=True)):
        parts += [text[at : place[0]], work.family.written(picture.layout, model.tokenizer.token_text, number)]
        at = place[1]
    return SeenText("".join([*parts, text[at:]]), [picture.rows for picture in pictures])


def _places(
    model: ServedModel, work: PictureWork, text: str, sources: Sequence[PictureSource]
) -> list[tuple[int, int]]:
    """Where the template has written a picture."""
    token = work.family.marker_token
    if not isinstance(token, str):
        token = model.tokenizer.token_text(work.family.placeholder if token is None else token)
    marker = token
    places = [found.span() for found in re.finditer(re.escape(marker), text)]
    if len(places) != len(sources):
        place = sources[0].place
        what = f"the prompt has {format_count(len(places), 'place')} for {format_count(len(sources), 'image')}"
        why = f"leave `{marker}` out of texts, and images out of messages in which the model's chat template shows none"
        raise ApiError(400, f"`{place}`: {what}; {why}", param=place, code="invalid_value")
    return places


async def _encoded(model: ServedModel, work: PictureWork, source: PictureSource, alone: bool) -> EncodedPicture:
    async with work.files:
        data = await picture_bytes(source, model.config)
        try:
            return await work.encode(data, alone=alone)
        except PictureError as error:
            raise bad_picture(source, f"cannot be read: {error}") from None
        except HomenodeError as error:
            raise _fault(error, source) from None


def _fault(error: HomenodeError, source: PictureSource) -> ApiError:
    """A fault of the server's own with a picture, which is not the client's."""
    return ApiError(503, f"`{source.place}`: {error.message}", param=source.place, code="overloaded", retry_after_s=5.0)


def placed_rows(model: ServedModel, ids: Sequence[int], rows: Sequence[PromptRows], first: int) -> list[PlacedRows]:
    """The rows of pictures at the placeholders among `ids` from place `first` on, each run of them apart. Raises
    ApiError 400 where there are more or fewer placeholders than rows.
    """
    assert model.pictures is not None
    placeholder = model.pictures.family.placeholder
    places = [place for place in range(first, len(ids)) if ids[place] == placeholder]
    if len(places) != sum(map(len, rows)):
        what = f"the prompt has {format_count(len(places), 'place')} for {format_count(sum(map(len, rows)), 'row')} of"
        raise ApiError(400, f"`messages`: {what} images", param="messages", code="invalid_value")
    found, at = [], 0
    for own in rows:
        mine = places[at : at + len(own)]
        at += len(own)
        begin = 0
        for number in range(1, len(mine) + 1):
            if number == len(mine) or mine[number] != mine[number - 1] + 1:
                found.append(PlacedRows(mine[begin], _part(own, begin, number)))
                begin = number
    return found


def _part(rows: PromptRows, begin: int, end: int) -> PromptRows:
    if (begin, end) == (0, len(rows)):
        return rows
    width = 4 * rows.columns
    digests = rows.digests[begin * ROW_DIGEST_BYTES : end * ROW_DIGEST_BYTES]
    data = rows.data[begin * width : end * width]
    return PromptRows(data, rows.columns, digests, rows.placeholder, (0, 0), rows.together)
