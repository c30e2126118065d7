"""`bench step`: the real engine around a program of a known time, and how little of a step is Python."""

from __future__ import annotations

import json

import pytest

from homenode.bench.engine.step import StepCost, measure_steps
from homenode.cli.main import main
from homenode.compute.native import NativeBackend
from homenode.host.topology.allowance import Allowance

_TRIES = 5
_MOST_SHARE = 0.02  # of a step of 20 ms in which nothing computes


def fastest(sequences: int) -> StepCost:
    """On a machine that others use as well a measurement may be disturbed, never flattered."""
    cpus = Allowance.of_process().physical_cpus[:2]
    found = []
    for _ in range(_TRIES):
        found.append(measure_steps(NativeBackend(list(cpus)), sequences, 40, step_s=0.02, vocab_size=151_936))
        if found[-1].share <= _MOST_SHARE:
            break
    return min(found, key=lambda cost: cost.share)


@pytest.mark.parametrize("sequences", [1, 32])
def test_a_step_is_nearly_all_computing(sequences: int) -> None:
    cost = fastest(sequences)
    print(f"\n{sequences} sequences: {cost.python_us:.0f} us of Python in a step of {cost.program_us / 1000:.1f} ms")
    assert cost.steps == 32, "one prefill and 39 decodes, of which a fifth is left out"
    assert cost.program_us > 15_000
    assert cost.python_us > 0 and cost.sampling_us > 0
    assert cost.share <= _MOST_SHARE


def test_the_command_speaks_json(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--steps", "12", "--step-ms", "0", "--vocab-size", "1000", "--temperature", "0.8")
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["bench", "step", "--sequences", "1,3", *sizes, "--json"])
    results = json.loads(capsys.readouterr().out)["results"]
    assert [r["sequences"] for r in results] == [1, 3]
    assert all(r["python_us"] > 0 and r["front_cpu_us"] > 0 and r["loop_cpu_us"] > 0 for r in results)
