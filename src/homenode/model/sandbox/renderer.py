"""The parent's side of chat templates: who renders, for how long, and what its failures are called."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from homenode.errors import CapacityError, CheckpointError, OverloadedError, UserError
from homenode.model.sandbox.failure import Failure
from homenode.model.sandbox.frames import SandboxFrameError, encode
from homenode.model.sandbox.process import ProcessLostError, SandboxProcess

DEFAULT_TIMEOUT_S = 5.0
_MODULE = "homenode.model.sandbox.template_process"
_MOST_PROCESSES = 3
_ANOTHER_AFTER_S = 0.2  # a rendering waits so long for a process before one more is started
_LOOKS_AFTER_S = 0.05
_LEAST_LIMIT = 1 << 20  # characters that any rendering may give
_REMEDY = "give another with --chat-template"
_LIMITS = (Failure.MEMORY, Failure.LENGTH)
_TIMES_INPUT = 8  # and so many times as much as what it is made of


@dataclass
class _Renderer:
    """A process, and the numbers it has given to templates."""

    process: SandboxProcess
    numbers: dict[str, int] = field(default_factory=dict)
    ready: bool = False


class _Pool:
    """At most `_MOST_PROCESSES` processes, of which each renders one conversation at a time.

    There is one as long as renderings are short. Another is started when a rendering has waited for a while, so that
    one conversation that takes all its time does not hold up everybody. Seconds in which one starts, which on a busy
    machine may be many more than a rendering takes, are not counted as waiting.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._idle: list[_Renderer] = []
        self._busy: set[int] = set()  # of the ids of those that render
        self._count = 0
        self._starting = 0  # processes
        self._since = 0.0  # when the first of these began
        self._start_s = 0.0  # seconds in which any started before
        self._closed = False

    def start(self) -> None:
        """Start the first process, and do not wait for it."""
        with self._changed:
            if self._count:
                return
            self._count += 1
        self._put(self._new())

    @contextlib.contextmanager
    def renderer(self, wait_s: float) -> Iterator[_Renderer]:
        """A process to use, which is ended when the body raises.

        OverloadedError when none is free within `wait_s` seconds, HostError when it does not start.
        """
        renderer = self._take(time.monotonic(), wait_s) or self._new()
        try:
            if not renderer.ready:
                self._begin(renderer)
            yield renderer
        except BaseException:
            self._forget(renderer)
            raise
        self._put(renderer)

    def close(self) -> None:
        """End all that are idle; those that are in use are ended when they come back."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            self._count -= len(idle)
        for renderer in idle:
            renderer.process.end()

    def _begin(self, renderer: _Renderer) -> None:
        """Wait until a process has started."""
        with self._changed:
            if not self._starting:
                self._since = time.monotonic()
            self._starting += 1
        try:
            renderer.process.wait_ready()
            renderer.ready = True
        finally:
            with self._changed:
                self._starting -= 1
                if not self._starting:
                    self._start_s += time.monotonic() - self._since
                self._changed.notify_all()

    def _seconds_of_starts(self, now: float) -> float:
        return self._start_s + (now - self._since if self._starting else 0.0)

    def _take(self, since: float, wait_s: float) -> _Renderer | None:
        """One that is idle; None when one more is to be started, which is counted already."""
        with self._changed:
            starts_s = self._seconds_of_starts(since)
            while True:
                while self._idle:
                    renderer = self._idle.pop()
                    if renderer.process.alive:
                        return renderer
                    renderer.process.end()
                    self._count -= 1
                now = time.monotonic()
                waited = now - since - (self._seconds_of_starts(now) - starts_s)
                if self._count == 0 or (waited >= _ANOTHER_AFTER_S and self._count < _MOST_PROCESSES):
                    self._count += 1
                    return None
                left = wait_s - waited
                if left <= 0:
                    raise OverloadedError(
                        f"the chat template is busy with {self._count} others; this conversation waited {wait_s:g} s",
                        retry_after_s=wait_s,
                    )
                until = _ANOTHER_AFTER_S - waited if self._count < _MOST_PROCESSES else left
                self._changed.wait(max(until, _LOOKS_AFTER_S))

    def _new(self) -> _Renderer:
        try:
            return _Renderer(SandboxProcess(_MODULE))
        except BaseException:
            with self._changed:
                self._count -= 1
                self._changed.notify()
            raise

    def _put(self, renderer: _Renderer) -> None:
        with self._changed:
            if not self._closed:
                self._idle.append(renderer)
                self._changed.notify()
                return
        self._forget(renderer)

    def _forget(self, renderer: _Renderer) -> None:
        renderer.process.end()
        with self._changed:
            self._count -= 1
            self._changed.notify()


class TemplateRenderer:
    """Compiles and renders chat templates in processes of their own. Safe to use from several threads, and blocks the
    one that calls.

    A template that takes longer than `timeout_s` seconds, more memory than the process may have, or gives far more
    text than it was given ends in an error; the process is ended and replaced when it does not come back.
    """

    def __init__(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        self._pool = _Pool()
        self.close = weakref.finalize(self, self._pool.close)

    def start(self) -> None:
        """Start the process, and do not wait for it; otherwise the first use does.

        HostError when the machine refuses.
        """
        self._pool.start()

    def compile(self, source: str) -> None:
        """Raises CheckpointError when `source` is no template, or cannot be compiled within the limits."""
        try:
            with self._pool.renderer(self.timeout_s) as renderer:
                answer = self._number(renderer, source)
        except TimeoutError:
            raise CheckpointError(
                f"the model's chat template could not be compiled within {self.timeout_s:g} s; {_REMEDY}"
            ) from None
        except (ProcessLostError, SandboxFrameError) as error:
            raise CheckpointError(f"the model's chat template could not be compiled: {error}") from None
        if isinstance(answer, dict):
            raise CheckpointError(f"the model's chat template is not valid jinja2: {answer.get('message')}; {_REMEDY}")

    def render(self, source: str, values: Mapping[str, Any]) -> str:
        """The text of template `source` for `values`, which must be what JSON can say.

        Raises UserError when the template refuses the values or fails on them, CapacityError when it goes over a
        limit; OverloadedError when no process is free for as long as one rendering may take; HostError when none can
        be started.
        """
        try:
            body = encode(dict(values))
        except SandboxFrameError as error:
            raise UserError(
                f"the conversation cannot be given to the model's chat template: {error}", param="messages"
            ) from None
        try:
            answer = self._rendered(source, body)
        except TimeoutError:
            raise _over_a_limit(
                f"did not come to an end on this conversation within {self.timeout_s:g} s (--chat-template-timeout)"
            ) from None
        except ProcessLostError as error:
            raise _over_a_limit(f"fails on this conversation: the process that renders it was lost, {error}") from None
        if isinstance(text := answer.get("text"), str):
            return text
        if answer.get("failure") == Failure.REFUSED:
            raise _failed(f"refuses this conversation: {answer.get('message')}")
        failed = _over_a_limit if answer.get("failure") in _LIMITS else _failed
        raise failed(f"fails on this conversation: {answer.get('message')}")

    def _rendered(self, source: str, body: bytes) -> dict[str, Any]:
        """The answer of a process. `body`: the values, as a frame holds them."""
        with self._pool.renderer(self.timeout_s) as renderer:
            number = self._number(renderer, source)
            if isinstance(number, dict):
                return number
            characters = _LEAST_LIMIT + _TIMES_INPUT * (len(body) + len(source))
            request = {"render": number, "characters": characters, "seconds": self.timeout_s}
            return self._ask(renderer, request, body)

    def _number(self, renderer: _Renderer, source: str) -> int | dict[str, Any]:
        """Return what the process calls the template, which it compiles at its first use; its answer when
        that fails.
        """
        if source not in renderer.numbers:
            answer = self._ask(renderer, {"compile": source, "seconds": self.timeout_s})
            renderer.numbers[source] = len(renderer.numbers)
            if "failure" in answer:
                return answer
        return renderer.numbers[source]

    def _ask(self, renderer: _Renderer, request: dict[str, Any], *bodies: bytes) -> dict[str, Any]:
        deadline = time.monotonic() + self.timeout_s  # from when it is this conversation's turn
        renderer.process.send(encode(request), *bodies, deadline=deadline)
        return renderer.process.receive(deadline)


def _failed(what: str) -> UserError:
    return UserError(f"the model's chat template {what}", param="messages")


def _over_a_limit(what: str) -> CapacityError:
    return CapacityError(f"the model's chat template {what}", param="messages")
