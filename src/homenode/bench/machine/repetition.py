"""Repeating a measurement between readings of the machine, and counting only the runs during which the machine stayed
what it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from homenode.bench.machine.ceilings import Ceilings
from homenode.bench.machine.fingerprint import Fingerprint, moved

_LONG_READS = 3
_SHORT_READS = 16  # two of every eighth of the memory
_MULTIPLY_BURSTS = 6
_ROUND_TRIP_BURSTS = 12
_ATTEMPTS = 3  # of each wanted run


class Meter(Protocol):
    """An instrument that takes bursts: `compute.native.NativeMeter`, or a fake."""

    def read(self, eight_streams: bool, short: bool) -> float:
        """Bytes a second, in a burst of some ten milliseconds or a short one of some milliseconds."""

    def multiply(self, kind: str) -> float:
        """Operations a second."""

    def round_trips(self) -> tuple[float, ...]:
        """Nanoseconds to each other thread and back."""


class BenchListener(Protocol):
    """Is told how measuring goes on."""

    def started(self, what: str) -> None:
        """A test begins."""

    def ran(self) -> None:
        """A run of it has ended, warm-up included."""

    def discarded(self, reason: str) -> None:
        """The run that just ended does not count."""


@dataclass(frozen=True)
class MachineReading:
    """The machine at one moment."""

    fingerprint: Fingerprint
    ceilings: Ceilings


def take_reading(meter: Meter, *, short: bool = False) -> MachineReading:
    """The machine now: about 0.2 s on two cores.

    The fingerprint is made of the best of many short bursts, one of which finds the CPUs undisturbed by other work.
    Multiplying is the best of short bursts too. Reading as a ceiling has to suit what it is compared with: for work of
    a second it is the median of long reads, which other programs slow down as they do the work; with `short`, for the
    best of passes of milliseconds, it is the best of short bursts.
    """
    trips = zip(*(meter.round_trips() for _ in range(_ROUND_TRIP_BURSTS)), strict=True)
    best = max(meter.read(eight_streams, True) for _ in range(_SHORT_READS) for eight_streams in (False, True))
    long = (
        0.0 if short else max(median(meter.read(eight, False) for _ in range(_LONG_READS)) for eight in (False, True))
    )
    int8, bf16, f32, int6 = (
        max(meter.multiply(kind) for _ in range(_MULTIPLY_BURSTS)) for kind in ("int8", "bf16", "f32", "int6")
    )
    return MachineReading(
        Fingerprint(tuple(min(t) for t in trips), best), Ceilings(best if short else long, int8, bf16, f32, int6)
    )


@dataclass(frozen=True)
class Run:
    """One counted run: its seconds, and the ceilings as they were around it."""

    seconds: float
    ceilings: Ceilings


@dataclass(frozen=True)
class Runs:
    """The runs that count. `discarded`: why each other one does not. `steady` is False when none was left and all were
    counted after all."""

    counted: tuple[Run, ...]
    discarded: tuple[str, ...]
    steady: bool
    before: MachineReading
    after: MachineReading


def repeat_steadily(
    run: Callable[[], float],
    read: Callable[[], MachineReading],
    repeat: int,
    discarding: Callable[[str], None] = lambda _: None,
) -> Runs:
    """Measure until `repeat` runs had the same placement before and after, at most 3 times as often.

    `run` returns its seconds. `discarding` is told at once why a run is thrown away. Every run but the first begins
    with the reading that ended the one before. When not a single run was steady, all are counted and `steady` is False:
    some figure is better than none.
    """
    first = before = read()
    counted: list[Run] = []
    moving: list[Run] = []
    reasons: list[str] = []
    for _ in range(_ATTEMPTS * repeat):
        seconds = run()
        after = read()
        done = Run(seconds, before.ceilings.between(after.ceilings))
        reason = moved(before.fingerprint, after.fingerprint)
        before = after
        if reason is None:
            counted.append(done)
        else:
            moving.append(done)
            reasons.append(reason)
            discarding(reason)
        if len(counted) == repeat:
            break
    return Runs(tuple(counted or moving), tuple(reasons), bool(counted), first, before)


def measure_repeatedly(
    run: Callable[[], float], meter: Meter, repeat: int, watch: BenchListener, *, short: bool = False
) -> Runs:
    """Run once to warm up, uncounted, then `repeat` times between readings, which are `short` where a run takes
    milliseconds."""

    def watched() -> float:
        seconds = run()
        watch.ran()
        return seconds

    watched()
    return repeat_steadily(watched, lambda: take_reading(meter, short=short), repeat, watch.discarded)
