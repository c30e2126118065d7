"""Prompts with pictures and other media: each file is encoded, the name that the chat template wrote for it becomes
what its family writes, and its rows stand where the placeholders are.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from homenode.engine.inputs import ROW_DIGEST_BYTES, PlacedRows, PromptRows
from homenode.errors import HomenodeError
from homenode.model.sandbox.frames import RefusedFileError
from homenode.server.core.media.content import MediaSource, refuse_media
from homenode.server.core.media.media_bytes import bad_media, media_bytes
from homenode.server.http.failures import ApiError
from homenode.server.models.media import MediaKind, media_input
from homenode.server.models.media_work import EncodedMedia, MediaWork
from homenode.server.models.served_model import ServedModel
from homenode.units import format_count


class EncodedText(NamedTuple):
    """A prompt's text with placeholders in the places of media, and the rows that stand for them, in order."""

    text: str
    rows: Sequence[PromptRows]


class _Marker(NamedTuple):
    """The name of the file `number` of a medium, where its template has written it in a text."""

    begin: int
    end: int
    kind: MediaKind
    number: int


def check_media(model: ServedModel, sources: Sequence[MediaSource]) -> None:
    """Raises ApiError 400 for more files than a request may have of a medium, and for any that the model does not
    take.
    """
    for kind, own in _by_kind(sources).items():
        if kind not in model.media:
            refuse_media(kind, own[0].place)
        limit = media_input(kind).limit
        most: int = getattr(model.config, limit)
        if len(own) > most:
            flag = f"--{limit.replace('_', '-')}"
            text = f"the request has {format_count(len(own), kind)}; at most {most} are taken ({flag})"
            raise ApiError(400, text, param=own[most].place, code="invalid_value")


async def encode_media(model: ServedModel, text: str, sources: Sequence[MediaSource]) -> EncodedText:
    """The text of a prompt as its chat template wrote it, with its media. Raises ApiError 400 for a file that cannot be
    read, for one that the text has no place for, and for a text that names the place of one where none is.
    """
    by_kind = _by_kind(sources)  # `check_media` has looked that the model takes them
    places = sorted(place for kind, own in by_kind.items() for place in _places(model, kind, text, own))
    ordered = [by_kind[place.kind][place.number] for place in places]
    waits = (_encoded(model.media[each.kind], model, each, len(by_kind[each.kind]) == 1) for each in ordered)
    found = await asyncio.gather(*waits, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    encoded = [each for each in found if isinstance(each, EncodedMedia)]
    parts, at = [], 0
    for place, own in zip(places, encoded, strict=True):
        family = model.media[place.kind].family
        parts += [text[at : place.begin], family.written(own.layout, model.tokenizer.token_text, place.number)]
        at = place.end
    return EncodedText("".join([*parts, text[at:]]), [each.rows for each in encoded])


def _by_kind(sources: Sequence[MediaSource]) -> dict[MediaKind, list[MediaSource]]:
    found: dict[MediaKind, list[MediaSource]] = {}
    for source in sources:
        found.setdefault(source.kind, []).append(source)
    return found


def _places(model: ServedModel, kind: MediaKind, text: str, sources: Sequence[MediaSource]) -> list[_Marker]:
    """The places where the template has written files of this medium, which are the sources in order."""
    mark = sources[0].mark  # of all of them
    marker = mark or _written_marker(model, kind)
    places = [found.span() for found in re.finditer(re.escape(marker), text)]
    if len(places) != len(sources):
        place = sources[0].place
        what = f"the prompt has {format_count(len(places), 'place')} for {format_count(len(sources), kind)}"
        texts = "" if mark else f"`{marker}` out of texts, and "
        why = f"leave {texts}{kind}s out of messages in which the model's chat template shows none"
        raise ApiError(400, f"`{place}`: {what}; {why}", param=place, code="invalid_value")
    return [_Marker(*span, kind, number) for number, span in enumerate(places)]


def _written_marker(model: ServedModel, kind: MediaKind) -> str:
    """The name that a chat template writes for a part of this medium."""
    family = model.media[kind].family
    marker = family.marker_token
    if isinstance(marker, str):
        return marker
    return model.tokenizer.token_text(family.placeholder if marker is None else marker)


async def _encoded(work: MediaWork, model: ServedModel, source: MediaSource, alone: bool) -> EncodedMedia:
    async with work.files:
        data = await media_bytes(source, model.config)
        try:
            return await work.encode(data, alone=alone)
        except RefusedFileError as error:
            raise bad_media(source, f"cannot be read: {error}") from None
        except HomenodeError as error:
            raise _fault(error, source) from None


def _fault(error: HomenodeError, source: MediaSource) -> ApiError:
    """A fault of the server's own with a file, which is not the client's."""
    return ApiError(503, f"`{source.place}`: {error.message}", param=source.place, code="overloaded", retry_after_s=5.0)


def placed_rows(ids: Sequence[int], rows: Sequence[PromptRows], first: int) -> list[PlacedRows]:
    """The rows of media at their placeholders among `ids` from place `first` on, each run of them apart. Raises
    ApiError 400 where there are more or fewer of a placeholder than rows that stand there.
    """
    found = []
    places = {token: _placeholders(ids, token, rows, first) for token in {own.placeholder for own in rows}}
    for own in rows:
        mine, begin = list(islice(places[own.placeholder], len(own))), 0
        for number in range(1, len(mine) + 1):
            if number == len(mine) or mine[number] != mine[number - 1] + 1:
                found.append(PlacedRows(mine[begin], _part(own, begin, number)))
                begin = number
    return sorted(found, key=lambda placed: placed.first)


def _placeholders(ids: Sequence[int], token: int, rows: Sequence[PromptRows], first: int) -> Iterator[int]:
    places = [place for place in range(first, len(ids)) if ids[place] == token]
    wanted = sum(len(own) for own in rows if own.placeholder == token)
    if len(places) != wanted:
        what = f"the prompt has {format_count(len(places), 'place')} for {format_count(wanted, 'row')} of"
        raise ApiError(400, f"`messages`: {what} what is no text in it", param="messages", code="invalid_value")
    return iter(places)


def _part(rows: PromptRows, begin: int, end: int) -> PromptRows:
    if (begin, end) == (0, len(rows)):
        return rows
    width = 4 * rows.columns
    digests = rows.digests[begin * ROW_DIGEST_BYTES : end * ROW_DIGEST_BYTES]
    data = rows.data[begin * width : end * width]
    return PromptRows(data, rows.columns, digests, rows.placeholder, (0, 0), rows.together)
