"""Images in messages of every API: each becomes rows at its place in the prompt, and what cannot be read is a 400 that
names its part.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import socket
import threading
import time
from array import array
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from homenode.engine.inputs import PromptRows
from homenode.engine.messages import Output, PoolingReady
from homenode.engine.request import Request
from homenode.model.pictures.decoded import PictureError
from homenode.model.pictures.families.minicpm_v import MiniCpmV
from homenode.model.pictures.family import PictureLayout
from homenode.model.tokenizer.literal_text import HiddenNames
from homenode.server.core.media import media_bytes
from homenode.server.core.media.content import MediaSource
from homenode.server.http.config import ServerConfig
from homenode.server.http.failures import ApiError
from homenode.server.models.media_work import EncodedMedia, MediaWork
from tests.server.written_answers import SignedTokenizer, Writer
from tests.waiting import PATIENCE_S, wait_in_loop

PLACE = ord("#")
ROWS = 3
CHAT, RESPONSES, MESSAGES, OLLAMA = "/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def url_of(data: bytes) -> str:
    return "data:image/png;base64," + base64_of(data)


class Showing(SignedTokenizer):
    """A chat template that writes # for an image."""

    def render_chat(
        self, /, messages: Any, add_generation_prompt: bool = True, tools: Any = None, **values: Any
    ) -> str:
        text = super().render_chat(messages, add_generation_prompt, tools, **values)
        return text.replace('{"type": "image"}', chr(PLACE))

    def token_text(self, token: int) -> str:
        return chr(token)


class Eyes:
    """Stands in for what encodes images: each has as many rows, known by its bytes; `bad` is damaged."""

    def __init__(self) -> None:
        self.seen: list[tuple[bytes, bool]] = []
        self.files = asyncio.Semaphore(16)
        self.family = SimpleNamespace(
            placeholder=PLACE, marker_token=None, written=lambda layout, names, number: names(PLACE) * ROWS
        )

    async def encode(self, data: bytes, *, alone: bool) -> EncodedMedia:
        self.seen.append((data, alone))
        if data == b"bad":
            raise PictureError("it is damaged")
        rows = PromptRows(data[:1] * 4 * ROWS, 1, data[:1] * 32 * ROWS, PLACE)
        return EncodedMedia(PictureLayout((1, 1), (1, 1), (1, 1)), rows)


def seeing(**settings: Any) -> Writer:
    writer = Writer("so it was", **settings)
    writer.tokenizer = Showing()
    writer.media, writer.row_columns = {"image": Eyes()}, 1
    return writer


def body_of(path: str, *images: bytes, tool: bool = False) -> dict[str, Any]:
    """A request of an API with a text, and images behind it; or in what a tool gave back."""
    text = {"type": "input_text" if path == RESPONSES else "text", "text": "what is this?"}
    if path == OLLAMA:
        return {
            "model": "story-teller",
            "stream": False,
            "messages": [{"role": "user", "content": "see", "images": [*map(base64_of, images)]}],
        }
    parts: list[dict[str, Any]] = [text]
    for image in images:
        if path == CHAT:
            parts.append({"type": "image_url", "image_url": {"url": url_of(image), "detail": "low"}})
        elif path == RESPONSES:
            parts.append({"type": "input_image", "image_url": url_of(image)})
        else:
            source = {"type": "base64", "media_type": "image/png", "data": base64_of(image)}
            parts.append({"type": "image", "source": source})
    if path == RESPONSES and tool:
        call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
        return {"input": [call, {"type": "function_call_output", "call_id": "c", "output": parts}]}
    if path == RESPONSES:
        return {"input": [{"role": "user", "content": parts}]}
    if path == MESSAGES:
        said: list[dict[str, Any]] = [{"role": "user", "content": parts}]
        if tool:
            use = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
            result = {"type": "tool_result", "tool_use_id": "c", "content": parts}
            said = [
                {"role": "user", "content": "see"},
                {"role": "assistant", "content": [use]},
                {"role": "user", "content": [result]},
            ]
        return {"model": "story-teller", "max_tokens": 4, "messages": said}
    role = {"role": "tool", "tool_call_id": "c"} if tool else {"role": "user"}
    return {"messages": [{**role, "content": parts}]}


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES, OLLAMA])
def test_images_of_every_api_are_rows_at_their_places(path: str) -> None:
    writer = seeing()
    answer = writer.ask(path, body_of(path, b"first", b"second"))
    assert answer.status_code == 200, answer.text
    (request,) = writer.requests
    assert [placed.rows.digests[:1] for placed in request.rows] == [b"f", b"s"]
    for placed in request.rows:
        assert request.prompt_ids[placed.first : placed.past] == [PLACE] * ROWS
    assert sum(token == PLACE for token in request.prompt_ids) == 2 * ROWS
    assert set(writer.media["image"].seen) == {(b"first", False), (b"second", False)}
    usage = answer.json().get("usage", {"prompt_tokens": answer.json().get("prompt_eval_count")})
    counted = usage.get("prompt_tokens", usage.get("input_tokens", 0)) + usage.get("cache_read_input_tokens", 0)
    assert counted == len(request.prompt_ids)


def embedding(writer: Writer, **more: Any) -> Any:
    """The answer to a request for the vector of a conversation. The engine's is as long as its prompt, twice."""

    def script(request: Request) -> list[Output]:
        assert request.pools
        return [Output(request.id, finish_reason="stop", pooled=array("f", [len(request.prompt_ids)] * 2).tobytes())]

    writer._script, writer.pooling = script, PoolingReady("last", 2)
    return writer.ask("/v1/embeddings", {**more, "normalize": False})


def test_a_conversation_with_images_becomes_one_vector() -> None:
    writer = seeing()
    answer = embedding(writer, **body_of(CHAT, b"first", b"second"))
    assert answer.status_code == 200, answer.text
    (request,) = writer.requests
    assert [placed.rows.digests[:1] for placed in request.rows] == [b"f", b"s"]
    assert sum(token == PLACE for token in request.prompt_ids) == 2 * ROWS
    (one,) = answer.json()["data"]
    assert one["embedding"] == [len(request.prompt_ids)] * 2 == [answer.json()["usage"]["prompt_tokens"]] * 2


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({}, "`input`"),
        ({**body_of(CHAT, b"x"), "input": "x"}, "`messages`"),
        ({**body_of(CHAT, b"x"), "truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
        ({"input": "x", "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"input": "x", "continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({**body_of(CHAT, b"good", b"bad")}, "messages[0].content[2]"),
    ],
)
def test_a_conversation_is_refused_by_name(more: dict[str, Any], named: str) -> None:
    answer = embedding(seeing(), **more)
    assert answer.status_code == 400 and named in answer.text


class Marking(Showing):
    """A chat template for texts alone, and a vocabulary in which marks of images are control tokens."""

    def hidden_names(self) -> HiddenNames:
        return HiddenNames(["<image>", "</image>", chr(PLACE)])

    def encode_pieces(
        self, text: str, add_special_tokens: bool = True, hidden: HiddenNames | None = None
    ) -> Iterator[list[int]]:
        assert hidden is not None  # what it hid stays so, to be told from what the family wrote
        return super().encode_pieces(text, add_special_tokens, hidden)


def marking(**settings: Any) -> Writer:
    """What sees as MiniCPM-V 2.6 does."""
    writer = seeing(**settings)
    writer.tokenizer, eyes = Marking(), writer.media["image"]
    eyes.family.marker_token = MiniCpmV.marker_token
    eyes.family.written = lambda layout, names, number: f"<image>{names(PLACE) * ROWS}</image>"
    return writer


def with_history(*images: bytes) -> dict[str, Any]:
    """A question with an image, its answer, and another such question."""
    first, second = (body_of(CHAT, image)["messages"] for image in images)
    return {"messages": [*first, {"role": "assistant", "content": "a cat"}, *second]}


@pytest.mark.parametrize(
    ("path", "body", "seen"),
    [
        (CHAT, body_of(CHAT, b"first"), b"f"),
        (CHAT, body_of(CHAT, b"first", b"second"), b"fs"),
        (CHAT, with_history(b"first", b"second"), b"fs"),
        (RESPONSES, body_of(RESPONSES, b"first", b"second"), b"fs"),
        (OLLAMA, body_of(OLLAMA, b"first", b"second"), b"fs"),
        *((path, body_of(path, b"first", tool=True), b"f") for path in (CHAT, RESPONSES, MESSAGES)),
    ],
)
def test_a_template_for_texts_is_given_marks_for_images(path: str, body: dict[str, Any], seen: bytes) -> None:
    """Although names of control tokens are hidden in all that it is given."""
    writer = marking()
    answer = writer.ask(path, body)
    assert answer.status_code == 200, answer.text
    (request,) = writer.requests
    assert b"".join(placed.rows.digests[:1] for placed in request.rows) == seen
    written = bytes(token for token in request.prompt_ids if token < 256).decode()
    assert written.count(f"<image>{chr(PLACE) * ROWS}</image>") == len(seen) == len(request.rows)
    marks = re.findall(r"image[0-9a-f]{32}", writer.tokenizer.rendered[-1])
    assert len(marks) == len(seen) and len(set(marks)) == 1 and marks[0] not in written
    assert '"type"' not in writer.tokenizer.rendered[-1]  # it knows no parts


def test_no_text_collides_with_a_mark_of_an_image() -> None:
    """Whatever a client has seen of marks, and of what families write."""
    writer = marking()
    said = body_of(CHAT, b"first")
    assert writer.ask(CHAT, said).status_code == 200
    old = re.findall(r"image[0-9a-f]{32}", writer.tokenizer.rendered[-1])[0]
    for settings in ({}, {"special_tokens_in_content": True}):
        said["messages"][0]["content"][0]["text"] = f"(<image>./</image>) {old}"
        writer = marking(**settings)
        answer = writer.ask(CHAT, said)
        assert answer.status_code == 200, answer.text
        assert len(writer.requests[0].rows) == 1 and old.encode() in bytes(writer.requests[0].prompt_ids[1:])


def test_an_image_that_no_template_shows_is_refused_by_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Marking, "render_chat", lambda *given, **values: "nothing")
    answer = marking().ask(CHAT, body_of(CHAT, b"x"))
    assert answer.status_code == 400 and "`messages[0].content[1]`: the prompt has 0 places for 1 image" in answer.text
    assert "leave images out of messages" in answer.text and not re.search(r"image[0-9a-f]{32}", answer.text)


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_what_a_tool_shows_is_seen(path: str) -> None:
    writer = seeing()
    answer = writer.ask(path, body_of(path, b"x", tool=True))
    assert answer.status_code == 200 and len(writer.requests[0].rows) == 1, answer.text
    assert set(writer.media["image"].seen) == {(b"x", True)}


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_a_damaged_image_is_named_by_its_part(path: str) -> None:
    answer = seeing().ask(path, body_of(path, b"good", b"bad"))
    field = "input" if path == RESPONSES else "messages"
    assert answer.status_code == 400 and f"`{field}[0].content[2]" in answer.text and "damaged" in answer.text


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url"},
        {"type": "image_url", "image_url": None},
        {"type": "image_url", "image_url": {"url": 7}},
        {"type": "image_url", "image_url": {}},
        {"type": "image"},
        {"type": "input_image", "image_url": {"a": 1}},
        {"type": "image_url", "image_url": {"url": ""}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,@@"}},
        {"type": "image_url", "image_url": {"url": "data:image/png,abc"}},
        {"type": "image_url", "image_url": {"url": "ftp://127.0.0.1/x"}},
        {"type": "image_url", "image_url": {"url": "file:///etc/hostname"}},
        {"type": "image_url", "image_url": {"url": "/etc/hostname"}},
        {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/x.png"}},
    ],
)
def test_what_is_no_image_is_refused_by_its_part(part: dict[str, Any]) -> None:
    answer = seeing().ask(CHAT, {"messages": [{"role": "user", "content": [part]}]})
    assert answer.status_code == 400 and "messages[0].content[0]" in answer.text, answer.text


def test_images_are_counted_over_all_messages() -> None:
    three = {"messages": [body_of(CHAT, b"x")["messages"][0]] * 3}
    assert seeing(limit_images=3).ask(CHAT, three).status_code == 200
    answer = seeing(limit_images=2).ask(CHAT, three)
    assert answer.status_code == 400 and "at most 2" in answer.text and "messages[2].content[1]" in answer.text


def test_a_text_cannot_stand_for_an_image() -> None:
    writer = seeing()
    assert writer.ask(CHAT, {"messages": [{"role": "user", "content": "#"}]}).status_code == 200
    assert not writer.requests[0].rows
    said = body_of(CHAT, b"x")
    said["messages"][0]["content"][0]["text"] = "#"
    answer = seeing().ask(CHAT, said)
    assert answer.status_code == 400 and "2 places for 1 image" in answer.text


@pytest.mark.parametrize("sees", [True, False])
def test_the_openapi_document_says_whether_images_are_taken(sees: bool) -> None:
    writer = seeing() if sees else Writer("so it was")
    schemas = writer.ask("/openapi.json", method="GET").json()["components"]["schemas"]
    for name in ("OllamaMessage", "OllamaGenerateRequest"):
        assert ("maxItems" in str(schemas[name]["properties"]["images"])) is not sees


def test_the_template_is_applied_as_it_would_be() -> None:
    writer = seeing()
    shown = writer.ask("/apply-template", body_of(CHAT, b"x")).json()
    assert writer.ask(CHAT, body_of(CHAT, b"x")).status_code == 200
    assert shown["token_ids"] == writer.requests[0].prompt_ids and chr(PLACE) * ROWS in shown["prompt"]


def test_the_same_picture_is_encoded_once() -> None:
    asyncio.run(encode_some())


async def encode_some() -> None:
    calls: list[bytes] = []
    decoder = SimpleNamespace(decode=lambda data, alone: (calls.append(data), SimpleNamespace(layout=None))[1])
    rows = PromptRows(bytes(8), 1, bytes(64), PLACE)
    work = MediaWork(None, decoder, SimpleNamespace(encode=lambda picture: rows), 3000)  # type: ignore[arg-type]
    first = await work.encode(b"a", alone=True)
    assert await work.encode(b"a", alone=True) is first and calls == [b"a"]
    await work.encode(b"a", alone=False)  # another picture, where families tell them apart
    await work.encode(b"b", alone=True)  # there is room for two
    assert (await work.encode(b"a", alone=True)) is not first and calls == [b"a", b"a", b"b", b"a"]


def test_files_are_those_of_the_folder(tmp_path: Path) -> None:
    asyncio.run(read_some(tmp_path))


async def read_some(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "x.png").write_bytes(b"seen")
    (tmp_path / "secret").write_bytes(b"secret")
    (inside / "link").symlink_to(tmp_path / "secret")
    config = ServerConfig(media_path=str(inside))
    source = MediaSource("image", "p", url=f"file://{inside}/x.png")
    assert await media_bytes.media_bytes(source, config) == b"seen"
    outside = ("../secret", "%2e%2e/secret", "link", "", "missing")
    read, written = os.pipe()  # whose name is no path
    others = ["file://other/x", f"file://{tmp_path}/secret", f"file:///proc/self/fd/{read}"]
    for url in [f"file://{inside}/{name}" for name in outside] + others:
        with pytest.raises(ApiError, match="p"):
            await media_bytes.media_bytes(MediaSource("image", "p", url=url), config)
    os.close(read)
    os.close(written)


@pytest.mark.parametrize(
    ("url", "hosts", "allowed"),
    [
        ("http://a.example/x", ("a.example",), True),
        ("https://A.example:444/x", ("a.example",), True),
        ("http://a.example:81/x", ("a.example:81",), True),
        ("http://a.example/x", ("a.example:81",), False),
        ("http://b.a.example/x", ("a.example",), False),
        ("http://a.example@b.example/x", ("a.example",), False),
        ("http://2130706433/x", ("127.0.0.1",), False),
    ],
)
def test_only_hosts_that_are_named_are_asked(url: str, hosts: tuple[str, ...], allowed: bool) -> None:
    parts = media_bytes.urlsplit(url)
    assert media_bytes.is_allowed(str(parts.hostname), parts.port, hosts) is allowed


def test_a_host_that_drips_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether its head or its body comes a byte at a time."""
    monkeypatch.setattr(media_bytes, "_FETCH_S", 0.15)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port, over = server.getsockname()[1], threading.Event()

        def drip(head: bytes) -> None:
            with server.accept()[0] as sock, suppress(OSError):
                sock.sendall(head)
                while not over.wait(0.01):
                    sock.sendall(b"x")

        for head in (b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n"):
            threading.Thread(target=drip, args=(head,), daemon=True).start()
            url = f"http://127.0.0.1:{port}/x.png"
            begun = time.monotonic()
            with pytest.raises(ApiError, match="could not be fetched"):
                asyncio.run(fetch(url))
            assert time.monotonic() - begun < PATIENCE_S / 2
        over.set()


async def fetch(url: str) -> bytes:
    return await media_bytes.media_bytes(MediaSource("image", "p", url=url), ServerConfig(media_domains=("127.0.0.1",)))


def test_a_slow_host_holds_up_no_thread_of_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_bytes, "_fetched", lambda source, url, hosts: threading.current_thread().name.encode())
    assert asyncio.run(fetch("http://127.0.0.1/x.png")).startswith(b"homenode-fetch")


def test_what_nobody_waits_for_is_not_begun() -> None:
    asyncio.run(leave_some())


async def leave_some() -> None:
    calls, held = list[bytes](), threading.Event()

    def decode(data: bytes, alone: bool) -> SimpleNamespace:
        calls.append(data)
        held.wait(PATIENCE_S)
        return SimpleNamespace(layout=None)

    rows = PromptRows(bytes(8), 1, bytes(64), PLACE)
    encoder = SimpleNamespace(encode=lambda picture: rows)
    work = MediaWork(None, SimpleNamespace(decode=decode), encoder, 3000)  # type: ignore[arg-type]
    busy = [asyncio.ensure_future(work.encode(data, alone=True)) for data in (b"a", b"b")]  # all threads that decode
    left = [asyncio.ensure_future(work.encode(b"c", alone=True)) for _ in range(2)]
    stays = [asyncio.ensure_future(work.encode(b"d", alone=True)) for _ in range(2)]
    await wait_in_loop(lambda: sorted(calls) == [b"a", b"b"])
    for each in (*left, stays[0]):
        each.cancel()
    assert [type(e) for e in await asyncio.gather(*left, return_exceptions=True)] == [asyncio.CancelledError] * 2
    held.set()
    for found in await asyncio.gather(*busy, stays[1]):
        assert found.rows is rows
    assert sorted(calls) == [b"a", b"b", b"d"]
    assert (await work.encode(b"c", alone=True)).rows is rows and calls[-1] == b"c"  # it can be asked for again
