"""A scripted model that writes a given text, behind a chat template of which only the signs are known: what every API
makes of the same answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from homenode.engine.messages import EngineReady, Output, PoolingReady
from homenode.engine.request import Request
from homenode.server.app import create_app
from homenode.server.core.state import ServerState
from homenode.server.http.config import ServerConfig
from homenode.server.models.served_model import ModelParts
from tests.server.fakes import EOS, ByteTokenizer, ScriptedClient, score

THINKS = "{{ '<think>' if enable_thinking }}"  # signs of thoughts, and a switch for them
# signs of the Hermes form of calls
CALLS = "{% if tools %}<tool_call>{{ tools }}{{ message.tool_calls }}</tool_call>{% endif %}"
# What shows messages of all roles, and thoughts among them.
SHOWS = (
    "{% for message in messages %}<{{ message.role }}>{{ message.reasoning_content }}"
    "{% for call in message.tool_calls %}{{ call }}{% endfor %}{% endfor %}"
)
CALL = '<tool_call>\n{"name": "look", "arguments": {"place": "wörld 🦊"}}\n</tool_call>'
LOOK = {
    "name": "look",
    "description": "Look somewhere.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}


class SignedTokenizer(ByteTokenizer):
    """Bytes, with the text of a chat template for those who look at it; prompts show what its variables are."""

    def __init__(self, source: str = "") -> None:
        super().__init__()
        self.source = source
        self.rendered: list[str] = []

    def template_source(self, with_tools: bool = False) -> str | None:
        return self.source

    def render_chat(
        self,
        /,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **values: Any,
    ) -> str:
        shown = [dict(message) for message in messages] + [{"values": values}] * bool(values)
        if tools:
            shown.insert(0, {"tools": tools})
        self.rendered.append(json.dumps(shown, ensure_ascii=False))
        return self.rendered[-1] + ("<assistant>" if add_generation_prompt else "")


class Writer:
    """What answers requests: every one of them with `text`, as far as its limit allows. `chunk`: bytes of each output,
    or of those that come one after another, the last size again and again.
    """

    def __init__(self, text: str | bytes, source: str = "", chunk: int | Sequence[int] = 1, **settings: Any) -> None:
        sizes = [chunk] if isinstance(chunk, int) else chunk
        said = text.encode() if isinstance(text, str) else text
        self.tokenizer = SignedTokenizer(source)
        self._script = lambda request: written(request, said, sizes)
        self._settings = settings
        self.details: dict[str, Any] = {}
        self.row_columns = 0
        self.media: dict[Any, Any] = {}  # what encodes files, by medium
        self.pooling: PoolingReady | None = None  # how vectors are made; None: it writes
        self.requests: list[Request] = []
        self.aborts: list[tuple[int, str]] = []

    def ask(self, path: str, body: Any = None, method: str = "POST", **headers: str) -> httpx.Response:
        """The answer of an application of its own."""

        client = ScriptedClient(self._script)
        client.ready = EngineReady(
            "/models/story-teller",
            65536,
            258,
            100,
            32,
            2048,
            128,
            True,
            details=self.details,
            row_columns=self.row_columns,
            pooling=self.pooling,
        )
        client.requests, client.aborts = self.requests, self.aborts

        async def run() -> httpx.Response:
            config = ServerConfig(port=0, **self._settings)
            state = ServerState([ModelParts(client, self.tokenizer, config, self.media)], config)
            transport = httpx.ASGITransport(create_app(state))
            async with httpx.AsyncClient(transport=transport, base_url="http://server") as asking:
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                given = {"content-type": "application/json", **headers}
                return await asking.request(method, path, content=None if body is None else content, headers=given)

        return asyncio.run(run())

    def seen(self) -> list[dict[str, Any]]:
        """The messages of the last prompt; before them the tools, behind them the variables, if there were any."""
        return json.loads(self.tokenizer.rendered[-1])


def written(request: Request, text: bytes, sizes: Sequence[int]) -> list[Output]:
    """The outputs for a text and the end."""
    tokens = [*text, EOS]
    cut = len(tokens) > request.params.max_tokens
    tokens = tokens[: request.params.max_tokens]
    pieces = []
    while tokens:
        size = sizes[min(len(pieces), len(sizes) - 1)]
        pieces.append(tokens[:size])
        tokens = tokens[size:]
    return [
        Output(
            id=request.id,
            tokens=piece,
            logprobs=[]
            if request.params.logprobs is None
            else [score(token, request.params.logprobs) for token in piece],
            finish_reason=None if number < len(pieces) - 1 else "length" if cut else "stop",
            stop_token=EOS if number == len(pieces) - 1 and not cut else None,
            cached_tokens=3 if number == 0 else 0,
        )
        for number, piece in enumerate(pieces)
    ]
