"""A medium is an entry of one table: a made-up kind of sound goes from every API that has such parts to rows at their
places, beside pictures, with limits, refusals and faults of its own.
"""

from __future__ import annotations

import base64
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from homenode.engine.inputs import PromptRows
from homenode.errors import HostError
from homenode.model.sandbox.frames import RefusedFileError
from homenode.server.core.media.media_prompts import placed_rows
from homenode.server.http.config import ServerConfig
from homenode.server.http.failures import ApiError
from homenode.server.models.media import MEDIA, MediaInput, media_works, unread_settings
from homenode.server.models.media_work import MediaWork
from tests.server.test_pictures import CHAT, MESSAGES, OLLAMA, RESPONSES, Eyes, Showing, body_of
from tests.server.test_pictures import PLACE as PICTURE
from tests.server.written_answers import Writer

SOUND, BEGIN = ord("~"), "<sound>"


class Ears:
    """Decodes and encodes sounds: one row a byte, of which `bad` is damaged and `lost` loses the process."""

    placeholder, marker_token = SOUND, BEGIN

    def __init__(self) -> None:
        self.closed = 0

    def written(self, layout: int, names: Any, number: int) -> str:
        return f"{number}:" + names(SOUND) * layout

    def decode(self, data: bytes, *, alone: bool) -> SimpleNamespace:
        if data == b"bad":
            raise RefusedFileError("it is no sound")
        return SimpleNamespace(layout=len(data), data=data)

    def encode(self, decoded: Any) -> PromptRows:
        if decoded.data == b"lost":
            raise HostError("the process that encodes sounds was lost")
        digests = b"".join(bytes([byte]) * 32 for byte in decoded.data)
        return PromptRows(bytes(4 * len(decoded.data)), 1, digests, SOUND)

    def close(self) -> None:
        self.closed += 1


class Telling(Showing):
    """A chat template that writes a name for a sound besides."""

    def render_chat(self, /, messages: Any, *rest: Any, **values: Any) -> str:
        return super().render_chat(messages, *rest, **values).replace('{"type": "audio"}', BEGIN)


@pytest.fixture(autouse=True)
def sounds(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(path: Any, ready: Any, config: ServerConfig) -> MediaWork:
        ears = Ears()
        return MediaWork(ears, ears, ears, config.encoder_cache_size)

    given = MediaInput(("input_audio", "audio_url"), "limit_images", ("limit_images",), "audio/*", make)
    monkeypatch.setitem(MEDIA, "audio", replace(MEDIA["audio"], input=given))


def hearing(*, sees: bool = False, **settings: Any) -> Writer:
    writer = Writer("so it was", **settings)
    writer.tokenizer, writer.row_columns = Telling(), 1
    ears = Ears()
    writer.media = {"audio": MediaWork(ears, ears, ears, 1 << 20), **({"image": Eyes()} if sees else {})}
    return writer


def sound_of(path: str, data: bytes) -> dict[str, Any]:
    coded = base64.b64encode(data).decode()
    if path == MESSAGES:
        return {"type": "audio", "source": {"type": "base64", "media_type": "audio/wav", "data": coded}}
    return {"type": "input_audio", "input_audio": {"data": coded, "format": "wav"}}


def asked(path: str, *sounds: bytes, images: tuple[bytes, ...] = ()) -> dict[str, Any]:
    """A body with images, and sounds behind them."""
    body = body_of(path, *images)
    content = (body["input"] if path == RESPONSES else body["messages"])[0]["content"]
    content += [sound_of(path, data) for data in sounds]
    return body


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_a_second_medium_is_rows_beside_the_first(path: str) -> None:
    writer = hearing(sees=True)
    answer = writer.ask(path, asked(path, b"abc", b"d", images=(b"x",)))
    assert answer.status_code == 200, answer.text
    (request,) = writer.requests
    assert [(each.rows.placeholder, len(each.rows)) for each in request.rows] == [(PICTURE, 3), (SOUND, 3), (SOUND, 1)]
    assert [each.rows.digests[:1] for each in request.rows] == [b"x", b"a", b"d"]
    for placed in request.rows:
        assert set(request.prompt_ids[placed.first : placed.past]) == {placed.rows.placeholder}
    text = "".join(map(chr, request.prompt_ids[request.rows[1].first - 2 :]))
    assert text.startswith("0:~~~") and "1:~" in text and BEGIN not in text


def test_an_address_is_fetched_as_that_of_a_picture_is() -> None:
    part = {"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64," + base64.b64encode(b"ab").decode()}}
    writer = hearing()
    assert writer.ask(CHAT, {"messages": [{"role": "user", "content": [part]}]}).status_code == 200
    assert len(writer.requests[0].rows[0].rows) == 2


@pytest.mark.parametrize(
    ("data", "status", "what"), [(b"bad", 400, "the audio cannot be read: it is no sound"), (b"lost", 503, "was lost")]
)
def test_a_fault_names_the_part(data: bytes, status: int, what: str) -> None:
    answer = hearing().ask(CHAT, asked(CHAT, b"good", data))
    assert answer.status_code == status and "messages[0].content[2]" in answer.text and what in answer.text


def test_each_medium_has_its_own_limit_and_refusal() -> None:
    assert hearing(sees=True, limit_images=2).ask(CHAT, asked(CHAT, b"a", b"b", images=(b"x", b"y"))).status_code == 200
    answer = hearing(sees=True, limit_images=2).ask(CHAT, asked(CHAT, b"a", b"b", b"c", images=(b"x",)))
    assert answer.status_code == 400 and "3 audios; at most 2" in answer.text and "content[4]" in answer.text
    answer = hearing().ask(OLLAMA, body_of(OLLAMA, b"x"))
    assert answer.status_code == 400 and "an image, which this model cannot see" in answer.text


def test_works_are_made_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    image = MEDIA["image"].input
    assert image is not None
    monkeypatch.setitem(MEDIA, "image", replace(MEDIA["image"], input=replace(image, make=lambda *rest: None)))
    config = ServerConfig(limit_images=3, media_domains=("a.example",))
    works = media_works(None, None, config)  # type: ignore[arg-type]
    assert list(works) == ["audio"]
    assert unread_settings(config, works) == [("--media-domains", "image")]
    assert unread_settings(ServerConfig(), works) == []


def test_rows_stand_at_placeholders_of_their_own() -> None:
    first, second = (PromptRows(bytes(8), 1, bytes([n]) * 64, token) for n, token in ((1, 7), (2, 8)))
    placed = placed_rows([7, 8, 8, 0, 7], [first, second], 0)
    assert [(each.first, each.rows.digests[0]) for each in placed] == [(0, 1), (1, 2), (4, 1)]
    with pytest.raises(ApiError, match="2 places for 4 rows"):
        placed_rows([7, 7], [first, first], 0)
