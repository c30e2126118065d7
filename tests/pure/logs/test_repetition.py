"""A fault that repeats is told a few times and then counted, whatever its values are; other kinds are not affected."""

from __future__ import annotations

import io
import logging
import re
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from homenode.logs.repetition import CountingHandler, Repetitions, kind_of

_TIMES = st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 3)), max_size=60)


@given(_TIMES)
def test_every_record_is_written_or_counted_and_few_are_written(steps: list[tuple[str, float]]) -> None:
    repetitions, now = Repetitions(period_s=10, written=2), 0.0
    written: Counter[str] = Counter()
    counted: Counter[str] = Counter()
    began: dict[str, float] = {}
    in_period: Counter[str] = Counter()
    for kind, pause in steps:
        now += pause
        for ended, count in repetitions.ended(now):
            counted[str(ended)] += count
        if now - began.get(kind, -100.0) >= 10:
            began[kind], in_period[kind] = now, 0
        in_period[kind] += 1
        admitted = repetitions.admit(kind, now)
        assert admitted == (in_period[kind] <= 2)
        written[kind] += admitted
    for ended, count in repetitions.ended(now + 100):
        counted[str(ended)] += count
    assert written + counted == Counter(kind for kind, _ in steps)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def logged() -> tuple[logging.Logger, io.StringIO, Clock, CountingHandler]:
    stream, clock = io.StringIO(), Clock()
    handler = CountingHandler(stream, Repetitions(period_s=10, written=2), clock)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logger = logging.Logger("some.part")
    logger.addHandler(handler)
    return logger, stream, clock, handler


def test_a_storm_is_a_few_lines_and_a_count() -> None:
    logger, stream, clock, handler = logged()
    for number in range(1000):
        logger.warning("request %d failed", number)
        logger.info("request %d came", number)
    clock.now = 10.0
    handler.tell_counts()
    lines = [line for line in stream.getvalue().splitlines() if line.startswith("WARNING")]
    assert lines == [
        "WARNING some.part: request 0 failed",
        "WARNING some.part: request 1 failed",
        "WARNING some.part: 998 more like this one: request 999 failed",
    ]
    assert stream.getvalue().count("INFO") == 1000


def test_tracebacks_of_one_place_are_one_kind_and_those_of_others_are_not() -> None:
    logger, stream, _, _ = logged()

    def one() -> None:
        raise ValueError("x")

    def other() -> None:
        raise ValueError("x")

    for fails in (one, other):
        for _ in range(10):
            try:
                fails()
            except ValueError:
                logger.exception("request failed")
    assert len(re.findall(r"^Traceback", stream.getvalue(), re.M)) == 4


def test_kinds_are_bounded() -> None:
    repetitions = Repetitions(written=1)
    assert all(repetitions.admit(number, 0.0) for number in range(5000))
    record = logging.LogRecord("a", logging.ERROR, "f", 1, "x %d", (1,), None)
    same = logging.LogRecord("a", logging.ERROR, "f", 1, "x %d", (2,), None)
    assert kind_of(record) == kind_of(same)
