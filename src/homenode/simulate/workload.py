"""The work that is asked of a simulated deployment: requests at given times, or clients that ask again when they were
answered. Pure.

poisson:rate=4,in=512,out=128,n=1000,seed=1    arrivals at random, 4 a second on average
closed:clients=8,in=256,out=128,n=64           8 clients, each asking again as soon as it was answered, 64 requests in
                                               all
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from homenode.errors import UserError
from homenode.spelling import with_suggestion
from homenode.units import parse_tokens

BLOCK = 512  # tokens that one of a job's `blocks` stands for
MOST_REQUESTS = 5_000_000
MOST_TOKENS = 10_000_000  # of one request
_TOKENS = ("in", "out")  # figures that are counts of tokens, which may be given as 8k
_DEFAULTS: dict[str, dict[str, float]] = {
    "poisson": {"rate": 1.0, "in": 512, "out": 128, "n": 100, "seed": 0},
    "closed": {"clients": 1, "in": 512, "out": 128, "n": 0},
}


@dataclass(frozen=True, slots=True)
class Job:
    """One request: seconds from the start, prompt and output tokens. `blocks`: names of the runs of BLOCK tokens that
    its prompt is made of, for prompts that begin alike; empty: it is like no other."""

    at: float
    prompt: int
    output: int
    blocks: tuple[int, ...] = ()

    def tokens(self, number: int, vocabulary: int) -> list[int]:
        """Made-up ids of its prompt; `number`: of the request, told apart by its first ids."""
        found: list[int] = []
        for place, name in enumerate(self.blocks or (number,)):
            length = BLOCK if place + 1 < len(self.blocks) else self.prompt - len(found)
            found += _named(name, length, vocabulary)
            if len(found) >= self.prompt:
                break
        return found[: self.prompt]


def _named(name: int, length: int, vocabulary: int) -> list[int]:
    ids = []
    for _ in range(min(length, 4)):
        name, digit = divmod(name, vocabulary)
        ids.append(digit)
    return ids + [0] * (length - len(ids))


@dataclass
class Workload:
    """`jobs`: in the order of their times. `clients`: 0: they come when they come; else so many are asked at once, the
    next when one ended."""

    name: str
    jobs: Sequence[Job]
    clients: int = 0
    _given: int = field(default=0, init=False)

    def begin(self) -> Iterator[Job]:
        """Yield those that wait for no answer."""
        self._given = self.clients or len(self.jobs)
        return iter(self.jobs[: self._given])

    def after(self, now: float) -> Job | None:
        """Return what is asked because a request ended now; None: nothing."""
        if not self.clients or self._given >= len(self.jobs):
            return None
        job = self.jobs[self._given]
        self._given += 1
        return Job(now, job.prompt, job.output, job.blocks)


def synthetic(text: str) -> Workload | None:
    """The workload that `poisson:...` or `closed:...` names; None for text that is neither. UserError for figures that
    cannot be."""
    kind, colon, settings = text.partition(":")
    if kind not in _DEFAULTS or not colon:
        return None
    values = _DEFAULTS[kind] | _read_settings(text, settings, _DEFAULTS[kind])
    prompt, output = _whole(text, "in", values["in"], MOST_TOKENS), _whole(text, "out", values["out"], MOST_TOKENS)
    if kind == "closed":
        clients = _whole(text, "clients", values["clients"], MOST_REQUESTS)
        count = _whole(text, "n", values["n"] or 8 * clients, MOST_REQUESTS)
        return Workload(text, [Job(0.0, prompt, output)] * count, min(clients, count))
    if not 0 < values["rate"] <= 1e9:
        raise _refusal(text, f"rate={values['rate']:g} must be more than 0")
    count, drawn = _whole(text, "n", values["n"], MOST_REQUESTS), random.Random(int(values["seed"]))
    return Workload(text, [Job(at, prompt, output) for at in _arrivals(drawn, values["rate"], count)])


def _arrivals(drawn: random.Random, rate: float, count: int) -> Iterable[float]:
    now = 0.0
    for _ in range(count):
        now += drawn.expovariate(rate)
        yield now


def _read_settings(text: str, settings: str, known: Iterable[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for word in filter(None, settings.split(",")):
        name, _, value = word.partition("=")
        if name not in known or name in found:
            message = f"{word!r} is none of {', '.join(known)}, each given once as NAME=NUMBER"
            raise _refusal(text, message if name in found else with_suggestion(message, name, known))
        try:
            found[name] = parse_tokens(value) if name in _TOKENS and value[-1:].isalpha() else float(value)
        except (ValueError, UserError):
            raise _refusal(text, f"{word!r} has no number") from None
        if not 0 <= found[name] < 1e18:
            raise _refusal(text, f"{word!r} is out of range")
    return found


def _whole(text: str, name: str, value: float, most: int) -> int:
    if value != int(value) or not 1 <= value <= most:
        raise _refusal(text, f"{name}={value:g} must be a whole number from 1 to {most}")
    return int(value)


def _refusal(text: str, fault: str) -> UserError:
    return UserError(f"--workload {text[:120]}: {fault}", param="workload")
