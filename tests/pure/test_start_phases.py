"""The phases of a start: marked, told by /metrics, read back and summed up by `bench start`."""

from __future__ import annotations

import time

from homenode.bench.serving.start import Phase, Start, durations, median_of, phases_in
from homenode.start_phases import mark_phase, marked_phases, phases_since, process_began

_METRICS = """# TYPE homenode:start_phase_seconds gauge
homenode:start_phase_seconds{model_name="m",phase="imports",process="front"} 0.25
homenode:start_phase_seconds{model_name="m",phase="weights",process="engine"} 0.5
homenode:start_phase_seconds{model_name="m",phase="imports",process="engine"} 0.3
homenode:memory_bytes{model_name="m",use="kv"} 12.0
"""


def test_a_process_began_before_its_marks_and_after_the_boot():
    began = process_began()
    mark_phase("a test")
    name, end = marked_phases()[-1]
    assert name == "a test"
    assert began is not None
    assert 0 < began < end <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_ends_are_told_from_the_beginning_and_what_is_no_mark_is_left_out():
    assert phases_since(10.0, [("imports", 10.5), ["weights", 12], ("nothing", None), (1, 2)]) == [
        ("imports", 0.5),
        ("weights", 2),
    ]


def test_phases_are_read_from_metrics_in_the_order_of_their_ends():
    assert phases_in(_METRICS) == (
        Phase("front", "imports", 0.25),
        Phase("engine", "imports", 0.3),
        Phase("engine", "weights", 0.5),
    )
    assert phases_in("") == ()


def test_a_phase_takes_the_time_since_the_one_before_it_in_its_process():
    taken = [(phase.process, phase.name, round(took, 3)) for phase, took in durations(phases_in(_METRICS))]
    assert taken == [("front", "imports", 0.25), ("engine", "imports", 0.3), ("engine", "weights", 0.2)]


def test_the_median_counts_phases_that_every_start_has():
    starts = [
        Start(1.0, (Phase("front", "imports", 0.2), Phase("front", "once", 0.9)), 100),
        Start(3.0, (Phase("front", "imports", 0.4),), None),
        Start(2.0, (Phase("front", "imports", 0.3),), 300),
    ]
    assert median_of(starts) == Start(2.0, (Phase("front", "imports", 0.3),), 200)
