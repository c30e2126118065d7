"""The machine at one moment, as /overview tells of it."""

from __future__ import annotations

from msgspec import Struct


class ToldFinding(Struct):
    """Something that a person should know, and what to do about it."""

    severity: str
    code: str
    message: str
    remedy: str


class ComputeThread(Struct):
    """A CPU on which a compute thread of engine `engine`, a process, was planned. `state`: `home` or `stray`.
    `elsewhere`: of a stray one, CPUs that were not planned, and that threads of this engine are bound to.
    """

    cpu: int
    engine: int
    state: str
    elsewhere: list[int] = []


class Throttled(Struct):
    """Periods of the CPU quota, those in which the kernel stopped this group, and the seconds of these, summed over
    CPUs; all since the group began.
    """

    periods: int
    throttled: int
    seconds: float


class MachineState(Struct):
    """What was read at one moment. `known`: whether plans of engines were found, so that threads can be judged."""

    fingerprint: str
    threads: list[ComputeThread]
    throttled: Throttled | None
    findings: list[ToldFinding]
    known: bool
