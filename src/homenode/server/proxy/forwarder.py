"""Carries one client request through the servers: performs each step that the state machine `ProxiedRequest` names,
and reports the result of the step to it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.types import Send

from homenode.server.http.bodies import Lease
from homenode.server.http.exchange import disconnected
from homenode.server.http.failures import ApiError
from homenode.server.http.sse import half_closed_of
from homenode.server.keys.caller import caller
from homenode.server.keys.told_usage import USAGE_HEADER, ToldUsage
from homenode.server.proxy.client_request import ClientRequest
from homenode.server.proxy.client_response import ClientResponse
from homenode.server.proxy.events import Events, event_of
from homenode.server.proxy.opened import Opened
from homenode.server.proxy.proxied_request import (
    Action,
    Choose,
    Decode,
    Fault,
    Over,
    Prefill,
    Problem,
    ProxiedRequest,
    Relay,
    ReleaseTicket,
    RetryLimits,
    Step,
)
from homenode.server.proxy.routing import RoutedLoad, RouteTarget
from homenode.server.proxy.speed import WorkKind
from homenode.server.proxy.state import ProxyState
from homenode.server.proxy.upstreams import UpstreamAnswer, UpstreamAnswerTooLong, UpstreamError
from homenode.server.tracing.span import RequestSpan, current_span

_LOG = logging.getLogger("homenode.proxy")
_BUSY = frozenset({429, 502, 503, 504})  # another server may do better
_LONGEST_BUSY_S = 5.0
_CODE = re.compile(r"\w{1,64}")  # of an error
_LOOK_AGAIN_S = 0.2  # pauses end without anybody telling

T = TypeVar("T")


class _ErrorCode(msgspec.Struct):
    code: str | None = None


class _ErrorAnswer(msgspec.Struct):
    error: _ErrorCode


class UpstreamSilent(Exception):
    """The server that is waited for does not answer looks any more, or is another one by now."""


class Forwarder:
    """One client request. `lease`: the bytes of its body, given back once no server needs the body any more. `holder`:
    the decode server that keeps what it goes on from, where it does and one has it.
    """

    def __init__(
        self,
        state: ProxyState,
        request: Request,
        asked: ClientRequest,
        lease: Lease,
        send: Send,
        holder: str | None = None,
    ) -> None:
        config = state.config
        self._state, self._request, self._asked, self._lease = state, request, asked, lease
        answer_s = config.first_byte_timeout if asked.stream else config.answer_timeout
        limits = RetryLimits(
            config.prefill_tries, config.decode_tries, config.wait_timeout, config.prefill_timeout, answer_s
        )
        self.proxied = ProxiedRequest(state.next_ticket(), asked.direct is None, limits)
        self._holder = holder
        self._prompt = state.loads.prompt(asked.units, asked.tokens, asked.salt, told=asked.told, stream=asked.stream)
        self._guessed = asked.tokens  # of the prompt; what they were is told with the answer
        self._counted = False  # that was told
        self._arrival = time.monotonic()
        self._at_decoder: RoutedLoad | None = None
        self._peer = b""  # what the chosen decode server, or that engine of it, published when it was chosen
        self._engine: str | None = None  # of several at the decode server
        self._unjudged: set[str] = set()  # servers chosen whose breaker has not heard how it went
        self._opened: Opened | None = None
        self._error_answer: Opened | None = None
        self._events = Events(asked.api)
        self._client = ClientResponse(send, half_closed_of(request))
        self._keep_alive: asyncio.Future[None] | None = None
        self._waits_for = ""
        self._span = current_span()
        self._call: RequestSpan | None = None  # the request to a decode server

    async def run(self) -> None:
        """Carry the request to its end. Raises ApiError when nothing was sent and there is no answer, and KeyLimitError
        when its key has no tokens left.
        """
        caller().take_prompt(self._guessed)
        self._state.proxied_requests.add(self.proxied)
        gone = asyncio.ensure_future(disconnected(self._request.receive))
        every_s = self._state.config.sse_keep_alive
        if self._asked.stream and self._asked.api.form.keep_alive and every_s:
            self._keep_alive = asyncio.ensure_future(self._client.keep_alive(every_s, lambda: self._waits_for))
        try:
            step = self._next(self.proxied.begin())
            while not isinstance(step, Over):
                step = self._next(await self._unless_gone(step, gone))
            await self._stop_keep_alive()
            await self._finish(step)
        finally:
            gone.cancel()
            await self._stop_keep_alive()
            if self.proxied.phase != "over":  # the task was cancelled, or a bug
                self._next(self.proxied.aborted())
            self._leave_decoder()
            self._end_call()
            for opened in (self._opened, self._error_answer):
                if opened is not None:
                    await opened.close()
            self._state.proxied_requests.discard(self.proxied)

    def _count_tokens(self, usage: ToldUsage | None) -> None:
        """Before the client has the end of the answer: its next request may come at once."""
        if usage is not None and not self._counted:
            self._counted = True
            caller().take_answer(self._guessed, usage)

    def _next(self, actions: list[Action]) -> Step:
        """Sends releases off; the step that remains."""
        *releases, step = actions
        for release in releases:
            assert isinstance(release, ReleaseTicket)
            self._state.releases.send(release, self._request.headers)
        assert not isinstance(step, ReleaseTicket)
        if isinstance(step, Over):
            self._record_outcome(step)
        return step

    async def _stop_keep_alive(self) -> None:
        """From here on somebody else writes to the client."""
        if self._keep_alive is not None:
            self._keep_alive.cancel()
            await asyncio.gather(self._keep_alive, return_exceptions=True)
            self._keep_alive = None

    async def _unless_gone(self, step: Step, gone: asyncio.Future[None]) -> list[Action]:
        work = asyncio.ensure_future(self._perform(step))
        try:
            ends: set[asyncio.Future[Any]] = {work, gone, self._state.aborting}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if work.done() or self._client.complete:  # the server calls the end of an answer a disconnect, too
                return await work
            return self.proxied.client_gone() if gone.done() else self.proxied.aborted()
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _perform(self, step: Step) -> list[Action]:
        self._waits_for = _wait_of(step)
        match step:
            case Choose():
                return await self._choose(step)
            case Prefill():
                return await self._prefill(step)
            case Decode():
                return await self._decode(step)
            case Relay():
                return await self._relay()
            case _:
                raise AssertionError(step)

    async def _choose(self, step: Choose) -> list[Action]:
        self._leave_decoder()
        began = time.monotonic()
        while (choice := self._state.choose(self._prompt, step, self._holder, self._asked.model)) is None:
            left = began + step.wait_s - time.monotonic()
            if left <= 0:
                break
            await self._state.watch.changes.wait(min(left, _LOOK_AGAIN_S))
        waited = time.monotonic() - began
        if self._span is not None:
            self._span.add_phase("choose servers", began, began + waited, {})
        if choice is None:
            return self.proxied.chosen(None, None, waited)
        if choice.short and self.proxied.handover:
            self.proxied.not_worth_it()
            self._state.metrics.direct("short")
        decoder, prefiller = choice.decoder.server, None if choice.prefiller is None else choice.prefiller.server
        for url in (decoder, prefiller):
            if url is not None:
                self._state.instances[url].breaker.sent(time.monotonic())
                self._unjudged.add(url)
        self._peer, self._engine = (
            self._state.instances[decoder].kv(self._asked.model).of(choice.decoder.engine),
            choice.decoder.engine,
        )
        kind = WorkKind.WHOLE if prefiller is None else WorkKind.HANDED_OVER
        self._at_decoder = self._begin(choice.decoder, kind)
        return self.proxied.chosen(prefiller, decoder, waited)

    async def _prefill(self, step: Prefill) -> list[Action]:
        entry = self._begin(RouteTarget(step.prefiller), WorkKind.PREFILL)
        began = time.monotonic()
        call, fault = self._begin_call("prefill", step.prefiller), None
        try:
            fault = await self._ask_prefiller(step, call)
            if fault is None:
                self._learn(step.prefiller, entry, time.monotonic() - began)
        finally:
            self._state.loads.end(entry)
            if call is not None:
                if fault is not None:
                    call.fail(fault)
                call.end()
        if fault is not None:
            self._failed(step.prefiller, fault)
            return self.proxied.prefill_failed(fault)
        self._judge(step.prefiller, True)
        self._state.metrics.prefilled(time.monotonic() - began)
        return self.proxied.prefilled()

    async def _ask_prefiller(self, step: Prefill, call: RequestSpan | None) -> Fault | None:
        """Ask a prefill server; what was wrong with its answer."""
        body = self._asked.for_prefill(step.ticket, self._peer)
        upstream = self._state.upstreams[step.prefiller]
        headers = self._headers(step.prefiller, call) | {"accept": "application/json"}
        try:
            answer = await self._guarded(
                upstream.ask("POST", self._path, headers, body), step.prefiller, step.deadline_s, 0.0, lambda: True
            )
        except UpstreamError as error:
            return self._broke(step.prefiller, error)
        except UpstreamSilent:
            return "silent"
        except TimeoutError:
            return "late"
        except UpstreamAnswerTooLong:
            return "failed"
        return self._read(step.prefiller, answer)

    def _read(self, prefiller: str, answer: UpstreamAnswer) -> Fault | None:
        """The fault that a prefill server's answer stands for, None for a good one."""
        self._state.instances[prefiller].heard_at = time.monotonic()
        if answer.status == 200:
            return None if _is_object(answer.body) else "failed"
        self._log_fault(prefiller, f"answered {answer.status}{_code_of(answer.body)}")
        if answer.status in (429, 503):
            if b"kv_transfer_refused" not in answer.body:  # that one is about this hand-over; anything else about all
                self._state.instances[prefiller].busy_until = time.monotonic() + _retry_after(answer)
            return "refused"
        return "rejected" if 400 <= answer.status < 500 and answer.status not in (401, 403) else "failed"

    async def _decode(self, step: Decode) -> list[Action]:
        self._end_call()
        self._call = self._begin_call("decode", step.decoder)
        opening, began = self._open(step), time.monotonic()
        try:
            opened = await self._guarded(
                opening,
                step.decoder,
                step.deadline_s,
                self._state.config.lost_after,
                lambda: self._asked.stream and self._another_than(step.decoder),
            )
        except UpstreamError as error:
            return self._decode_failed(step.decoder, self._broke(step.decoder, error))
        except UpstreamSilent:
            return self._decode_failed(step.decoder, "silent")
        except TimeoutError:
            return self._decode_failed(step.decoder, "late")
        if opened.status in _BUSY and opened.whole:
            if self._error_answer is not None:
                await self._error_answer.close()
            self._error_answer = opened
            return self._decode_failed(step.decoder, "refused", has_answer=True)
        self._opened = opened
        self._judge(step.decoder, opened.status < 500)
        if self._at_decoder is not None:
            self._state.loads.answered(self._at_decoder)
            if opened.is_stream and opened.status == 200:  # of any other answer the end was waited for
                self._learn(step.decoder, self._at_decoder, time.monotonic() - began)
        self._lease.give_back()
        self._asked = self._asked.forgotten()
        self._state.metrics.first_byte(time.monotonic() - self._arrival)
        return self.proxied.answering()

    async def _open(self, step: Decode) -> Opened:
        body = self._asked.for_decode(step.ticket, self._engine)
        response = await self._state.upstreams[step.decoder].send(
            "POST", self._path, self._headers(step.decoder, self._call), body
        )
        opened = Opened(step.decoder, response)
        try:
            await opened.begin()
        except BaseException:
            await opened.close()
            raise
        return opened

    def _decode_failed(self, decoder: str, fault: Fault, *, has_answer: bool = False) -> list[Action]:
        self._failed(decoder, fault)
        if self._call is not None:
            self._call.fail(fault)
        self._end_call()
        return self.proxied.decode_failed(fault, has_answer=has_answer)

    async def _relay(self) -> list[Action]:
        assert self._opened is not None
        await self._stop_keep_alive()
        decoder = self._opened.url
        if self._opened.is_stream and self._asked.api.form.keep_alive:
            self._keep_alive = asyncio.ensure_future(self._client.look_for_client(lambda: self._events.between))
        try:
            await self._guarded(self._pump(self._opened), decoder, None, self._state.config.lost_after)
        except (UpstreamError, UpstreamSilent, TimeoutError) as error:
            if not self._events.done:  # else only the end of the connection is missing
                return self._cut(decoder, error)
            await self._client.write(b"", more=False)
        finally:
            await self._stop_keep_alive()
        complete = self._events.done if self._opened.is_stream else True
        return self.proxied.ended(used=self._opened.status < 300 and complete)

    def _cut(self, decoder: str, error: UpstreamError | UpstreamSilent | TimeoutError) -> list[Action]:
        fault: Fault = "late"
        reason = f"the decode server sent nothing for {self._state.config.idle_timeout:g} s"
        if isinstance(error, UpstreamError):
            fault, reason = self._broke(decoder, error), "the decode server was lost in the middle of the answer"
        elif isinstance(error, UpstreamSilent):
            fault, reason = "silent", "the decode server stopped answering in the middle of the answer"
        self._failed(decoder, fault)
        if self._call is not None:
            self._call.fail(fault)
        return self.proxied.cut(reason)

    async def _pump(self, opened: Opened) -> None:
        """Pass everything on. Raises UpstreamError, and TimeoutError after a silence."""
        instance = self._state.instances[opened.url]
        await self._client.start(opened.status, opened.headers)
        if self._client.early:
            await self._client.tell_ignored(opened.headers)
        self._count_tokens(opened.usage)
        within_stream = self._client.early and not opened.is_stream
        body: list[bytes] = []
        while True:
            async with asyncio.timeout(self._state.config.idle_timeout):
                chunk = await opened.next()
            if chunk is None:
                break
            instance.heard_at = time.monotonic()
            if within_stream:
                body.append(chunk)
            elif data := self._events.feed(chunk) if opened.is_stream else chunk:
                self._count_tokens(self._events.usage)
                await self._client.write(data, more=True)
        await self._client.write(
            event_of(b"".join(body), self._asked.api.label) if within_stream else self._events.flush(), more=False
        )

    async def _finish(self, step: Over) -> None:
        """Send the client the rest of its answer, or the problem that ended the request."""
        if step.problem is not None and not self._client.started:
            raise _error(step.problem)
        is_stream = self._client.early or (self._opened is not None and self._opened.is_stream)
        if step.has_answer and self._error_answer is not None:
            await self._pump(self._error_answer)
        elif step.problem is not None and is_stream:
            await self._client.write(self._events.failure(_error(step.problem)), more=False)
        # any other answer that broke off stays without its end: the connection is closed, and the client sees that it
        # is not whole

    def _another_than(self, decoder: str) -> bool:
        """Return whether another decode server could begin the answer now."""
        now = time.monotonic()
        return any(
            url != decoder and each.role == "decode" and each.usable(now) for url, each in self._state.instances.items()
        )

    async def _guarded(
        self,
        work: Coroutine[Any, Any, T],
        url: str,
        deadline_s: float | None,
        patience_s: float,
        elsewhere: Callable[[], bool] | None = None,
    ) -> T:
        """The result of `work` at a server. `elsewhere`: whether the same could be had elsewhere, so that a server
        that is suspected is not waited for. Raises UpstreamSilent when the server is given up meanwhile, TimeoutError,
        and what `work` raises.
        """
        task = asyncio.ensure_future(work)
        watches = [asyncio.ensure_future(self._state.watch.until_lost(url, patience_s))]
        if elsewhere is not None and self._state.config.suspect_after:
            watches.append(asyncio.ensure_future(self._until_suspect(url, elsewhere)))
        try:
            await asyncio.wait({task, *watches}, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if any(watch.done() for watch in watches):
                raise UpstreamSilent
            raise TimeoutError
        finally:
            for each in (task, *watches):
                each.cancel()
            await asyncio.gather(task, *watches, return_exceptions=True)

    async def _until_suspect(self, url: str, elsewhere: Callable[[], bool]) -> None:
        while True:
            await self._state.watch.until_suspect(url, self._state.config.suspect_after)
            if elsewhere():
                return

    def _record_outcome(self, step: Over) -> None:
        for url in self._unjudged:
            self._state.instances[url].breaker.spared()
        self._unjudged.clear()
        self._state.metrics.finished(self.proxied.way, step.outcome, time.monotonic() - self._arrival)

    def _begin(self, target: RouteTarget, kind: WorkKind) -> RoutedLoad:
        model = self._state.instances[target.server].loaded_model(self._asked.model)
        return self._state.loads.begin(target, self._prompt, kind, model)

    def _learn(self, url: str, entry: RoutedLoad, seconds: float) -> None:
        """Note what a server took. A model that is not loaded at the last look was not when it was asked, maybe."""
        if self._state.instances[url].loaded_model(self._asked.model) == entry.model:
            self._state.loads.learn(entry, seconds)

    def _leave_decoder(self) -> None:
        if self._at_decoder is not None:
            self._state.loads.end(self._at_decoder)
            self._at_decoder = None

    def _broke(self, url: str, error: UpstreamError) -> Fault:
        self._log_fault(url, str(error))
        self._state.watch.broke(url)
        return "gone"

    def _failed(self, url: str, fault: Fault) -> None:
        """A server failed the request."""
        self._log_fault(url, fault)
        self._state.metrics.fault(self._state.instances[url].role, url, fault)
        if fault in ("refused", "rejected"):
            self._unjudged.discard(url)
            self._state.instances[url].breaker.spared()
        else:
            self._judge(url, False)

    def _judge(self, url: str, well: bool) -> None:
        """Tell a server's breaker how a request went."""
        self._unjudged.discard(url)
        breaker = self._state.instances[url].breaker
        if well:
            breaker.succeeded()
        else:
            breaker.failed(time.monotonic())

    def _log_fault(self, url: str, what: str) -> None:
        _LOG.warning("request %s at %s: %s", self._id, url, what)

    def _headers(self, url: str, call: RequestSpan | None) -> dict[str, str]:
        asks = {USAGE_HEADER: "?"} if caller().counted else {}
        return self._state.upstreams[url].headers(self._request.headers.items(), self._id, call) | asks

    def _begin_call(self, name: str, url: str) -> RequestSpan | None:
        """The span of a request to a server, where traces are made."""
        return None if self._span is None else self._span.begin_call(name, {"server.address": url})

    def _end_call(self) -> None:
        """The decode server that was asked last is done with."""
        if self._call is not None:
            self._call.end()
            self._call = None

    @property
    def _path(self) -> str:
        return str(self._request.scope["path"])

    @property
    def _id(self) -> str:
        return str(self._request.state.request_id)


def _wait_of(step: Step) -> str:
    """Return what a client is told that waits for this step: for what, and for how many seconds at most."""
    match step:
        case Choose():
            return f"waiting up to {step.wait_s:.0f} s for a decode server"
        case Prefill():
            return f"waiting up to {step.deadline_s:.0f} s for the prompt to be computed"
        case Decode():
            return f"waiting up to {step.deadline_s:.0f} s for the answer to begin"
        case _:
            return "waiting"


def _error(problem: Problem) -> ApiError:
    return ApiError(problem.status, problem.message, code=problem.code, retry_after_s=problem.retry_after_s)


def _is_object(body: bytes) -> bool:
    try:
        return isinstance(msgspec.json.decode(body), dict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _code_of(body: bytes) -> str:
    """Return the code of an error, to be told behind its status. Its message may quote the request, which no log is to
    have.
    """
    try:
        code = msgspec.convert(msgspec.json.decode(body), _ErrorAnswer, strict=False).error.code or ""
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError):
        return ""
    return f" ({code})" if _CODE.fullmatch(code) else ""


def _retry_after(answer: UpstreamAnswer) -> float:
    """Seconds for which a server asks to be left alone."""
    text = next((value.decode("latin-1") for name, value in answer.headers if name == b"retry-after"), "")
    return min(_LONGEST_BUSY_S, float(text)) if text.isdecimal() and len(text) < 9 else 1.0
