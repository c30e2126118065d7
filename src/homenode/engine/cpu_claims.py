"""Claims of the engines of this process on the host's CPUs, and what others claim and use.

A claim lives as long as its process, or until the engine ends: `homenode run`, `homenode bind` and every other engine
of this user and pid namespace keep clear of it. What cannot be kept or read never stops an engine: it is told, and the
short look at the CPUs still sees who computes there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from homenode.errors import HomenodeError
from homenode.host.bind.base.state import open_state
from homenode.host.bind.base.threads import ancestors
from homenode.host.bind.claims import ClaimTable, exclusive, exclusive_if_possible, living_claims
from homenode.host.bind.cpu_look import CpuLook
from homenode.host.plan.demand import Claim

_RELEASE_S = 1.0  # a claim that is not released in this time ends with its process
_LOCK = threading.Lock()  # around what follows
_held: list[CpuClaim] = []
_look: CpuLook | None = None


class CpuClaim:
    """The claim of one engine of this process; `cpus` are none before it is known, and after `release`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cpus: tuple[int, ...] = ()

    def release(self) -> None:
        """Let others have the CPUs. Calling it again does nothing."""
        with _LOCK:
            if self not in _held:
                return
            _held.remove(self)
        # A claim that stays, as memory has run out too, ends with its process.
        ends = suppress(HomenodeError, MemoryError)
        with ends, exclusive_if_possible(_drop, _RELEASE_S, untrusted_too=True) as table:
            _write(table)


class OpenClaims:
    """The claims of this host while nobody else plans. `others`: those of other programs, and of other engines of this
    process. `lines`: what is to be told; complete when the block has ended."""

    def __init__(self, others: tuple[Claim, ...], lines: list[str]) -> None:
        self.others, self.lines = others, lines
        self._changed = False

    def take(self, claim: CpuClaim, cpus: Collection[int]) -> None:
        """Claim these CPUs, in place of what `claim` had."""
        claim.cpus, self._changed = tuple(sorted(set(cpus))), True
        with _LOCK:
            if claim not in _held:
                _held.append(claim)

    def write(self, table: ClaimTable) -> None:
        """Have what was taken kept for others to see."""
        if self._changed:
            _write(table)


@contextmanager
def open_claims(of: CpuClaim) -> Iterator[OpenClaims]:
    """Read the claims, plan, and claim for the engine `of`, with nobody else doing the same. Never raises by itself."""
    lines: list[str] = []
    with exclusive_if_possible(lambda line: lines.append(_bare(line)), untrusted_too=True) as table:
        found = OpenClaims(_others(table.claims, of), lines)
        yield found
        try:
            found.write(table)
        except HomenodeError as error:  # without /proc no process is known
            lines.append(f"this claim of CPUs is not kept: {error.message}")


@contextmanager
def lock_claims(of: CpuClaim, deadline_s: float) -> Iterator[OpenClaims]:
    """The same for who can do without: HostError or UserError where nothing can be kept, or another has the lock for
    `deadline_s` seconds."""
    with exclusive(open_state(), deadline_s) as table:
        found = OpenClaims(_others(table.claims, of), [])
        yield found
        found.write(table)


def claims_of_others(of: CpuClaim | None = None) -> tuple[Claim, ...]:
    """The claims of others as they are now, for whoever claims nothing; none where they cannot be read."""
    try:
        return _others(living_claims(), of)
    except HomenodeError:  # without /proc nobody's ancestors are known
        return ()


def begin_look(own: Sequence[int] = (0,)) -> None:
    """Begin to look at what others run on each CPU; `busy_cpus` ends it. `own`: processes that do not count, 0: this
    one."""
    global _look
    _look = CpuLook(own)


def busy_cpus() -> Mapping[int, float]:
    """The part of a short look in which others ran on each CPU: that which was begun, else one of now."""
    global _look
    look, _look = _look or CpuLook(), None
    return look.finish()


def _others(claims: Sequence[Claim], of: CpuClaim | None) -> tuple[Claim, ...]:
    """Without what is this program's: what its ancestors were given for whatever they start."""
    own, above = os.getpid(), set(ancestors(os.getpid()))
    others = [
        claim for claim in claims if claim.pid != own and (claim.computes or claim.pid not in above) and claim.cpus
    ]
    with _LOCK:
        mine = [each for each in _held if each is not of and each.cpus]
    return (*others, *(Claim(own, each.cpus, (), each.name, computes=True) for each in mine))


def _write(table: ClaimTable) -> None:
    """Replace this process's claim by what all its engines have, beside what it was given as a program."""
    own = os.getpid()
    given = next((claim for claim in table.claims if claim.pid == own and not claim.computes), None)
    with _LOCK:
        cpus = {cpu for each in _held for cpu in each.cpus}
        name = ", ".join(dict.fromkeys(each.name for each in _held))
    if given is not None:
        table.add(Claim(own, tuple(sorted(cpus | set(given.cpus))), given.devices, given.name))
    elif cpus:
        table.add(Claim(own, tuple(sorted(cpus)), (), name, computes=True))
    else:
        table.release(own)


def _bare(line: str) -> str:
    return line.removeprefix("warning: ")


def _drop(line: str) -> None:
    """Nobody needs to hear that a claim outlives its engine: it ends with the process."""


def forget_claims() -> None:
    global _look
    _held.clear()
    _look = None


os.register_at_fork(after_in_child=forget_claims)
