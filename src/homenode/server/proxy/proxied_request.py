"""The way of one request through the servers, as a state machine. Pure: each call reports the result of the last step
and returns the next one.

    choosing -> prefilling -> handed -> decoding -> over
        ^-----------'-----------'                             a server failed before the first byte

Each call returns the tickets to be released and then exactly one step. A ticket is drawn for every attempt at a
hand-over, and released unless the decode server used it up. Every step has a deadline and their number is bounded, so
every request ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Fault = Literal["refused", "rejected", "failed", "gone", "silent", "late"]
Way = Literal["handover", "local", "direct"]
Phase = Literal["choosing", "prefilling", "handed", "decoding", "over"]
Outcome = Literal["ok", "error", "cut", "client_gone", "aborted"]
PHASES: tuple[Phase, ...] = ("choosing", "prefilling", "handed", "decoding")


@dataclass(frozen=True)
class RetryLimits:
    """The limits of how often servers may fail a request, and how long each phase may take, in seconds."""

    prefill_tries: int
    decode_tries: int
    wait_s: float
    prefill_s: float
    first_byte_s: float


@dataclass(frozen=True)
class Problem:
    """An error that the client is told of."""

    status: int
    code: str
    message: str
    retry_after_s: float | None = None


@dataclass(frozen=True)
class ReleaseTicket:
    """Tell these servers that the ticket is given up."""

    ticket: str
    servers: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Choose:
    """Choose servers; wait up to `wait_s` for a decode server. Those in `avoid` only where there is no other, or not at
    all if `strict`.
    """

    handover: bool
    failed_prefillers: frozenset[str]
    avoid: frozenset[str]
    strict: bool
    wait_s: float


@dataclass(frozen=True)
class Prefill:
    """Have the prompt computed and handed over."""

    prefiller: str
    decoder: str
    ticket: str
    deadline_s: float


@dataclass(frozen=True)
class Decode:
    """Ask for the answer, up to its first byte."""

    decoder: str
    ticket: str | None
    deadline_s: float


@dataclass(frozen=True)
class Relay:
    """Pass the answer on to its end."""


@dataclass(frozen=True)
class Over:
    """The end. `problem`: to be told, unless `has_answer`: then the last answer that was kept is passed on."""

    outcome: Outcome
    problem: Problem | None = None
    has_answer: bool = False


Step = Choose | Prefill | Decode | Relay | Over
Action = ReleaseTicket | Step


@dataclass(eq=False)
class ProxiedRequest:
    """One request. `ticket`: the name of its first ticket. `handover`: its KV is to be handed over if possible."""

    ticket: str
    handover: bool
    limits: RetryLimits
    phase: Phase = "choosing"
    way: Way = "direct"
    faults: list[tuple[str, Fault]] = field(default_factory=list)
    _open: tuple[str, str, str] | None = None  # ticket, prefiller, decoder
    _drawn: int = 0
    _prefill_failures: int = 0
    _decode_failures: int = 0
    _failed_prefillers: frozenset[str] = frozenset()
    _failed_decoders: frozenset[str] = frozenset()
    _decoder: str = ""
    _has_answer: bool = False  # an error answer of a decode server can be passed on
    _waited_s: float = 0.0

    def begin(self) -> list[Action]:
        """The first step."""
        return [self._choose()]

    def chosen(self, prefiller: str | None, decoder: str | None, waited_s: float = 0.0) -> list[Action]:
        """Servers were chosen, or none was found."""
        self._waited_s += waited_s
        if decoder is None:
            return self._no_decoder()
        self._decoder = decoder
        if prefiller is None or not self.handover:
            self.way = "local" if self.handover or self._drawn else "direct"
            return self._decode(None)
        self._drawn += 1
        ticket = self.ticket if self._drawn == 1 else f"{self.ticket}.{self._drawn}"
        self._open = ticket, prefiller, decoder
        self.phase, self.way = "prefilling", "handover"
        return [Prefill(prefiller, decoder, ticket, self.limits.prefill_s)]

    def not_worth_it(self) -> None:
        """The decoder lacks so little of the prompt that it is to compute it."""
        self.handover = False

    def prefilled(self) -> list[Action]:
        """The prompt is computed, its keys and values are there or on their way."""
        assert self._open is not None
        return self._decode(self._open[0])

    def prefill_failed(self, fault: Fault) -> list[Action]:
        """Another prefill server, or the decoder computes the prompt. `rejected`: the request is wrong, which the
        decoder is to say.
        """
        assert self._open is not None
        prefiller = self._open[1]
        self.faults.append((prefiller, fault))
        self._prefill_failures += 1
        self._failed_prefillers |= {prefiller}
        if fault == "rejected" or self._prefill_failures >= self.limits.prefill_tries:
            self.handover = False
        return [*self._release(f"prefill {fault}"), self._choose()]

    def decode_failed(self, fault: Fault, *, has_answer: bool = False) -> list[Action]:
        """Nothing of an answer was passed on. `has_answer`: there is an answer, an error that another decoder may not
        make.
        """
        self.faults.append((self._decoder, fault))
        self._decode_failures += 1
        self._failed_decoders |= {self._decoder}
        self._has_answer = has_answer
        released = self._release(f"decode {fault}")
        if fault == "late" or self._decode_failures >= self.limits.decode_tries:
            return [*released, self._end("error", None if has_answer else _problem(fault))]
        return [*released, self._choose()]

    def answering(self) -> list[Action]:
        """The first byte is there."""
        self.phase, self._has_answer = "decoding", False
        return [Relay()]

    def ended(self, *, used: bool) -> list[Action]:
        """The whole answer was passed on. `used`: it is a result, so the ticket was taken."""
        if used:
            self._open = None
        return [*self._release("the answer is an error"), self._end("ok" if used else "error", None)]

    def cut(self, reason: str) -> list[Action]:
        """The answer broke off after its first byte."""
        self.faults.append((self._decoder, "gone"))
        return [*self._release("the answer broke off"), self._end("cut", Problem(502, "decoder_lost", reason))]

    def client_gone(self) -> list[Action]:
        """The client has closed its connection; at any time."""
        return [*self._release("the client is gone"), self._end("client_gone", None)]

    def aborted(self) -> list[Action]:
        """The proxy ends; at any time."""
        problem = Problem(503, "aborted", "the request was aborted: the proxy is shutting down")
        return [*self._release("the proxy is shutting down"), self._end("aborted", problem)]

    def _choose(self) -> Choose:
        self.phase = "choosing"
        left = max(0.0, self.limits.wait_s - self._waited_s)
        return Choose(
            self.handover,
            self._failed_prefillers,
            self._failed_decoders,
            self._has_answer,
            0.0 if self._has_answer else left,
        )

    def _decode(self, ticket: str | None) -> list[Action]:
        self.phase = "handed"
        return [Decode(self._decoder, ticket, self.limits.first_byte_s)]

    def _no_decoder(self) -> list[Action]:
        if self._has_answer:
            return [self._end("error", None)]
        message = "no decode server is usable; /health of the proxy says why"
        return [self._end("error", Problem(503, "no_decoder", message, retry_after_s=2.0))]

    def _release(self, reason: str) -> list[Action]:
        """The open ticket is given up."""
        if self._open is None:
            return []
        ticket, prefiller, decoder = self._open
        self._open = None
        return [ReleaseTicket(ticket, (prefiller, decoder), reason)]

    def _end(self, outcome: Outcome, problem: Problem | None) -> Over:
        self.phase = "over"
        return Over(outcome, problem, has_answer=self._has_answer and problem is None and outcome == "error")


def _problem(fault: Fault) -> Problem:
    if fault == "late":
        return Problem(504, "decoder_timeout", "the decode server did not begin to answer in time")
    return Problem(502, "decoder_failed", "no decode server answered; the proxy's log tells more", retry_after_s=1.0)
