"""A request on its way through several engines: where it is, what it has given out, and what is left of it should its
engine be lost.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from homenode.engine.connection.link import OutputStream
from homenode.engine.messages import Output
from homenode.engine.request import Request
from homenode.engine.router.router import RoutedRequest


class Owner(Protocol):
    """A listener that hears how a request goes on: `dispatch.Dispatcher`."""

    def abort_unheard(self, request_id: int) -> None: ...

    def began(self, stream: RoutedStream) -> None: ...

    def ended(self, stream: RoutedStream) -> None: ...

    def engine_lost_under(self, stream: RoutedStream, reason: str) -> None: ...


class RoutedStream(OutputStream):
    """The outputs of one request, whichever engine computes them. `losses`: engines that were lost under it."""

    def __init__(self, owner: Owner, request: Request, routed: RoutedRequest) -> None:
        """`request` has a seed, so that another engine draws the same tokens."""
        super().__init__(owner, request.id)
        self._owner = owner
        self.request, self.routed = request, routed
        self.given: list[int] = []
        self.losses = 0

    @property
    def rest(self) -> Request:
        """Return what an engine is asked for: to go on after the tokens that were given out. Prompt scores came with
        the first of them.
        """
        if not self.given:
            return self.request
        params = msgspec.structs.replace(self.request.params, prompt_logprobs=None)
        return msgspec.structs.replace(self.request, begun=self.given.copy(), params=params)

    @property
    def tokens(self) -> list[int]:
        """Prompt and answer so far."""
        return [*self.request.prompt_ids, *self.given]

    def put(self, output: Output) -> None:
        """Tell the client that an output came."""
        if self.losses and output.cached_tokens:  # found by the engine that took over, tokens of the answer among them
            output = msgspec.structs.replace(output, cached_tokens=0)
        if output.tokens:
            if not self.routed.running:
                self._owner.began(self)
            self.given += output.tokens
        if output.finish_reason is not None:
            self._owner.ended(self)
        super().put(output)

    def lost(self, reason: str) -> None:
        """Tell the client: its engine is gone; another may take over."""
        self._owner.engine_lost_under(self, reason)

    def fail(self, kind: str, text: str, retry_after_s: float | None = None) -> None:
        """The last output: it cannot go on."""
        self.put(
            Output(self.request.id, finish_reason="error", error=text, error_kind=kind, retry_after_s=retry_after_s)
        )
