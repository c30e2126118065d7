"""A scripted engine and a byte-level tokenizer: the server sees the same interfaces as in earnest, and every answer is
known.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from homenode.chat.template_messages import text_of
from homenode.engine.messages import EngineReady, EngineStats, Output, ReplicaStats, RequestList, RequestRow
from homenode.engine.request import Request, TokenLogprob
from homenode.errors import PeerError, UserError
from homenode.model.tokenizer.fill_in_middle import FillInMiddleTokens
from homenode.model.tokenizer.literal_text import HiddenNames
from homenode.model.tokenizer.surrounding_tokens import SurroundingTokens

BOS, EOS, VOCAB = 256, 257, 258
SPECIAL = {BOS: "<s>", EOS: "</s>"}
MAX_MODEL_LEN = 256
STORY = "Once upon a time, a wörld of 猫 and 🦊 had no end. "


class ByteTokenizer:
    """A token is a byte; 256 begins a text and 257 ends one."""

    vocab_size = VOCAB
    bos_token_id: int | None = BOS
    eos_token_id: int | None = EOS
    stop_token_ids: tuple[int, ...] = ()
    bytes_are_text = True
    special_token_ids = tuple(SPECIAL)
    fill_in_middle: FillInMiddleTokens | None = None
    surrounding = SurroundingTokens((BOS,))

    def __init__(self, *, template: bool = True, bos: bool = True) -> None:
        self.has_chat_template = template
        self._bos = [BOS] if bos else []

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [*(self._bos if add_special_tokens else ()), *text.encode("utf-8", "surrogatepass")]

    def encode_pieces(
        self, text: str, add_special_tokens: bool = True, hidden: HiddenNames | None = None
    ) -> Iterator[list[int]]:
        ids = self.encode(text, add_special_tokens)
        return (ids[at : at + 1000] for at in range(0, len(ids), 1000))

    def hidden_names(self) -> HiddenNames:
        return HiddenNames([])

    def fewest_tokens(self, text: str) -> int:
        return len(text)

    def encode_chat_pieces(
        self, text: str, add_special_tokens: bool | None = None, hidden: HiddenNames | None = None
    ) -> Iterator[list[int]]:
        return self.encode_pieces(text, bool(add_special_tokens), hidden)

    def chat_prompt(self, ids: list[int], add_special_tokens: bool | None = None) -> list[int]:
        return self.encode("", bool(add_special_tokens)) + ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        shown = [token for token in ids if token < 256 or not skip_special_tokens]
        return b"".join(self.token_bytes(token) for token in shown).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else SPECIAL[token].encode()

    def token_text(self, token: int) -> str:
        return self.token_bytes(token).decode("utf-8", "replace")

    def special_tokens_in(self, texts: Sequence[str]) -> dict[int, str]:
        return {token: name for token, name in SPECIAL.items() if any(name in text for text in texts)}

    def template_source(self, with_tools: bool = False) -> str | None:
        return "..." if self.has_chat_template else None

    response_template: Any = None

    def stream(
        self, context: Sequence[int] = (), skip_special_tokens: bool = True, shown: Collection[int] = ()
    ) -> ByteStream:
        return ByteStream(self, skip_special_tokens)

    def render_chat(
        self,
        /,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **values: Any,
    ) -> str:
        if not self.has_chat_template:
            raise UserError("this model has no chat template", param="messages")
        turns = "".join(f"<{message['role']}>{text_of(message['content'])}</>" for message in messages)
        return f"{values.get('prefix', '')}{turns}" + ("<assistant>" if add_generation_prompt else "")

    def info(self) -> dict[str, Any]:
        return {
            "bos_token": "<s>",
            "eos_token": "</s>",
            "vocab_size": VOCAB,
            "chat_template": "..." if self.has_chat_template else None,
        }


class ByteStream:
    def __init__(self, tokenizer: ByteTokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer, self._skip, self._held = tokenizer, skip_special_tokens, b""

    def push(self, ids: Iterable[int]) -> str:
        for token in ids:
            if token < 256 or not self._skip:
                self._held += self._tokenizer.token_bytes(token)
        for cut in range(min(4, len(self._held)) + 1):
            try:
                text = self._held[: len(self._held) - cut].decode()
            except UnicodeDecodeError:
                continue
            self._held = self._held[len(self._held) - cut :]
            return text
        text, self._held = self._held.decode("utf-8", "replace"), b""
        return text

    def flush(self) -> str:
        text, self._held = self._held.decode("utf-8", "replace"), b""
        return text


def scripted(request: Request, chunk: int = 1) -> list[Output]:
    """What the engine says to `request`: STORY's bytes over and over, then EOS after a prompt that ends in "end"."""
    params = request.params
    story = STORY.encode()
    tokens = [story[i % len(story)] for i in range(params.max_tokens)]
    if bytes(token for token in request.prompt_ids if token < 256).endswith(b"end") and not params.ignore_eos:
        tokens = [*tokens[:5], EOS]
    tokens = tokens[: min(params.max_tokens, MAX_MODEL_LEN - len(request.prompt_ids))]
    stopped = next((i for i, token in enumerate(tokens) if token == EOS or token in params.stop_token_ids), None)
    if stopped is not None:
        tokens = tokens[: stopped + 1]
    outputs = []
    for start in range(0, max(len(tokens), 1), chunk):
        part = tokens[start : start + chunk]
        last = start + chunk >= len(tokens)
        outputs.append(
            Output(
                id=request.id,
                tokens=part,
                logprobs=[] if params.logprobs is None else [score(token, params.logprobs) for token in part],
                prompt_logprobs=prompt_scores(request) if start == 0 and params.prompt_logprobs is not None else None,
                finish_reason=("length" if stopped is None else "stop") if last else None,
                stop_token=part[-1] if last and stopped is not None else None,
                cached_tokens=3 if start == 0 else 0,
            )
        )
    return outputs


def score(token: int, top: int) -> TokenLogprob:
    """-token/100 for every token; the token itself comes first among the most likely."""
    others = [(other, -other / 100 - 1) for other in range(VOCAB) if other != token][: max(top - 1, 0)]
    return TokenLogprob(-token / 100, [(token, -token / 100), *others][:top])


def prompt_scores(request: Request) -> list[TokenLogprob | None]:
    assert request.params.prompt_logprobs is not None
    return [None, *(score(token, request.params.prompt_logprobs) for token in request.prompt_ids[1:])]


class ScriptedClient:
    """Fulfils `homenode.server.interfaces.client.EngineClient`. Every request answers by `script`; `hold_after` tokens
    it waits for `release()`.
    """

    def __init__(self, script: Callable[[Request], list[Output]] = scripted, *, hold_after: int | None = None) -> None:
        self.ready = EngineReady("/models/story-teller", MAX_MODEL_LEN, VOCAB, 100, 32, 2048, 128, chunked_prefill=True)
        self.statistics = EngineStats(
            num_running=2, num_waiting=1, kv_usage=0.25, prefix_queries=10, prefix_hits=4, preemptions=3
        )
        self.engines: tuple[ReplicaStats, ...] = ()
        self.hindrance: str | None = None
        self.on_engine_lost: Callable[[str], None] | None = None
        self.script, self.hold_after = script, hold_after
        self.requests: list[Request] = []
        self.aborts: list[tuple[int, str]] = []
        self.tickets_released: list[tuple[str, str]] = []
        self.resets = 0
        self.silent = False
        self.rows: list[RequestRow] = []  # what the engine says that it has
        self.held, self.closed = threading.Event(), threading.Event()  # somebody waits; somebody left early
        self._released = asyncio.Event()
        self._aborted: set[int] = set()
        self._ended: Output | None = None

    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        self.requests.append(request)
        given, finished = 0, False
        try:
            for output in self.script(request):
                if self.hold_after is not None and given >= self.hold_after:
                    self.held.set()
                    await self._released.wait()
                await asyncio.sleep(0)
                if self._ended is not None or request.id in self._aborted:
                    finished = True
                    yield self._ended or Output(id=request.id, finish_reason="abort")
                    return
                given += len(output.tokens)
                finished = output.finish_reason is not None
                yield output
        finally:
            if not finished:
                self.aborts.append((request.id, "closed"))
                self.closed.set()

    def abort(self, id: int, reason: str = "abort") -> None:
        self.aborts.append((id, reason))
        self._aborted.add(id)
        if reason == "abort":
            self._released.set()

    async def release_kv(self, ticket: str, reason: str) -> None:
        self.tickets_released.append((ticket, reason))

    async def reset_prefix_cache(self) -> None:
        self.resets += 1

    async def list_requests(self, most: int, timeout: float) -> RequestList:
        if self.silent:
            raise PeerError("silent")
        return RequestList(1, self.rows[:most], len(self.rows[most:]))

    async def heartbeat(self, timeout: float) -> float:
        if self.silent:
            raise PeerError("silent")
        return 0.001

    def release(self) -> None:
        """Lets held requests go on; call it in the server's loop."""
        self.hold_after = None
        self._released.set()

    def die(self) -> None:
        """The engine is lost, as `AsyncEngineClient` tells it: every request gets an error, then the server is told."""
        self._ended = Output(id=0, finish_reason="error", error="the engine is gone: killed", error_kind="PeerError")
        self.release()
        if self.on_engine_lost is not None:
            self.on_engine_lost("killed")
