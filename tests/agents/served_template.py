"""A server over a chat template and a scripted model that uses the tools of agents: what was asked, which prompt came
of it, and what the header named as left out.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Library

from homenode.engine.messages import EngineReady, Output
from homenode.engine.request import Request
from homenode.model.sandbox.renderer import TemplateRenderer
from homenode.model.tokenizer import Tokenizer
from homenode.server.app import create_app
from homenode.server.core.state import ServerState
from homenode.server.http.config import ServerConfig
from homenode.server.http.listener import Server, bind, url_of, uvicorn_config
from homenode.server.models.served_model import ModelParts
from tests.agents.programs import MODEL
from tests.server.fakes import ScriptedClient

_END = "<|end of answer|>"
_NAMES = {"bos_token": "<s>", "eos_token": _END, "unk_token": "<unk>", "pad_token": "<pad>"}
_LONGEST = 2**20


@dataclass
class Exchange:
    """A request and what became of it. `prompt`: None before the engine is asked."""

    path: str
    body: dict[str, Any]
    prompt: str | None = None
    status: int = 0
    ignored: str = ""


Write = Callable[[Exchange], str]  # the answer to a request whose prompt is known
_exchange: contextvars.ContextVar[Exchange] = contextvars.ContextVar("exchange")


@dataclass
class ServedTemplate:
    """A server at `url`, and what came to it."""

    url: str = ""
    seen: list[Exchange] = field(default_factory=list)

    @property
    def prompts(self) -> list[Exchange]:
        """The requests that a model answers."""
        return [each for each in self.seen if each.prompt is not None]


def byte_tokenizer(template: str, renderer: TemplateRenderer) -> Tokenizer:
    """Tokens are bytes, but for the end of an answer."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = Library(models.BPE(vocab={sign: number for number, sign in enumerate(alphabet)}, merges=[]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken(_END, normalized=False)])
    return Tokenizer(library, _NAMES, {"default": template}, renderer=renderer)


@contextmanager
def served(template: str, write: Write, renderer: TemplateRenderer) -> Iterator[ServedTemplate]:
    """A server whose model answers what `write` makes of each request."""
    tokenizer = byte_tokenizer(template, renderer)
    end = tokenizer.encode(_END, False)

    def answer(request: Request) -> list[Output]:
        exchange = _exchange.get()
        exchange.prompt = tokenizer.decode(list(request.prompt_ids), skip_special_tokens=False)
        tokens = [*tokenizer.encode(write(exchange), False), *end]
        return [Output(id=request.id, tokens=tokens, finish_reason="stop", stop_token=end[0])]

    client = ScriptedClient(answer)
    client.ready = EngineReady(MODEL, _LONGEST, tokenizer.vocab_size, 10**6, 32, 2048, 128, True)
    running = ServedTemplate()
    config = ServerConfig(port=0)
    listener = bind(config)
    running.url = url_of(listener)
    app = _recorded(create_app(ServerState([ModelParts(client, tokenizer, config)], config)), running.seen)
    server = Server(uvicorn_config(app, config))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(server.serve(sockets=[listener]),))
    thread.start()
    try:
        yield running
    finally:
        loop.call_soon_threadsafe(lambda: server.stop(at_once=True))
        thread.join(20)
        loop.close()
    assert not thread.is_alive()


def _recorded(app: Any, seen: list[Exchange]) -> Any:
    """The application, with each request that has a body in `seen`."""

    async def recorded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await app(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        exchange = Exchange(scope["path"], json.loads(body or b"{}"))
        seen.append(exchange)
        _exchange.set(exchange)
        whole = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_again() -> Any:
            return whole.pop() if whole else await receive()

        async def send_seen(message: Any) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                headers = {name.lower(): value for name, value in message["headers"]}
                exchange.ignored = headers.get(b"x-homenode-ignored", b"").decode()
            await send(message)

        await app(scope, receive_again, send_seen)

    return recorded
