"""The speed that this engine reaches on a machine, out of what `homenode bench model --json` measured there. Pure but
for `load_achieved`.

The bench counts the work of its steps and measures the machine in the same minute, so three of its results give what
`step_cost` supposes otherwise: a prompt the share of multiplications, one sequence the share of read bandwidth, several
sequences what unpacking costs once a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import msgspec

from homenode.errors import UserError
from homenode.host.plan.numa.step_cost import OWN, EngineKind
from homenode.simulate.costs import FLOAT_COST

_MOST_BYTES = 16 << 20
_READS_ALONE = 0.97  # a step that took this share of its reading, or more, says nothing of its multiplications
_KINDS = ("int8", "int6", "bf16", "f32")


class _Step(msgspec.Struct):
    bytes: float
    int8_operations: float
    int6_operations: float
    bf16_operations: float
    f32_operations: float


class _Ceilings(msgspec.Struct):
    read_gb_s: float
    int8_gops: float
    int6_gops: float
    bf16_gops: float
    f32_gops: float


class _MeasuredTest(msgspec.Struct):
    test: str
    batch: int
    tokens: int
    tok_s: float
    step: _Step
    ceilings: _Ceilings


class _BenchFile(msgspec.Struct):
    results: list[_MeasuredTest]


@dataclass(frozen=True, slots=True)
class AchievedSpeed:
    """`kind`: shares of the machine's int8 multiplications and read bandwidth. `float_cost`: of an operation of
    attention, in operations of weights.

    `read_gb_s`, `int8_gops`: what the machine could do meanwhile, where it was measured.
    """

    kind: EngineKind
    float_cost: float
    read_gb_s: float = 0.0
    int8_gops: float = 0.0


TYPICAL = AchievedSpeed(OWN, FLOAT_COST)  # where nothing was measured


def load_achieved(path: str) -> AchievedSpeed:
    """`read_achieved` of a file."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        _refuse(path, getattr(error, "strerror", None) or str(error))
    return read_achieved(data, path)


def read_achieved(data: bytes, name: str) -> AchievedSpeed:
    """Read the speed out of a bench's JSON. UserError, naming file and fault, where it is none or lacks one of the
    three results.
    """
    if len(data) > _MOST_BYTES:
        _refuse(name, "larger than any such file")
    try:
        results = msgspec.json.decode(data, type=_BenchFile).results
    except (msgspec.DecodeError, RecursionError) as error:
        _refuse(name, str(error)[:200])
    if any(not 0 < value < 1e18 for one in results for value in _numbers(one)) or any(
        min(_operations(one.step).values()) < 0 for one in results
    ):
        _refuse(name, "a figure is not a number above 0")
    prompt = max((one for one in results if one.test == "prefill"), key=lambda one: one.tokens, default=None)
    decodes = [one for one in results if one.test == "decode"]
    alone = next((one for one in decodes if one.batch == 1), None)
    several = min((one for one in decodes if one.batch >= 4), key=lambda one: abs(one.batch - 8), default=None)
    if prompt is None or alone is None or several is None:
        _refuse(name, "it needs a prompt and decoding of one and of four or more sequences")
    return _fitted(prompt, alone, several)


def _numbers(result: _MeasuredTest) -> tuple[float, ...]:
    c = result.ceilings
    counts = (result.step.bytes, sum(_operations(result.step).values()))
    return (
        result.tok_s,
        result.tokens,
        result.batch,
        c.read_gb_s,
        c.int8_gops,
        c.int6_gops,
        c.bf16_gops,
        c.f32_gops,
        *counts,
    )


def _fitted(prompt: _MeasuredTest, alone: _MeasuredTest, several: _MeasuredTest) -> AchievedSpeed:
    int8 = prompt.ceilings.int8_gops * 1e9
    weights, float_cost = _of_weights(prompt)
    rate = weights / (prompt.tokens / prompt.tok_s)  # operations of weights a second, when many tokens share a row
    multiplies = rate / int8
    reads = alone.step.bytes * alone.tok_s / (alone.ceilings.read_gb_s * 1e9)
    seconds = several.batch / several.tok_s
    reading = several.step.bytes / (several.ceilings.read_gb_s * 1e9 * reads)
    slower = several.ceilings.int8_gops / prompt.ceilings.int8_gops  # the machine's, from one test to the other
    unpacking = (
        0.0
        if reading >= _READS_ALONE * seconds
        else max(0.0, seconds - _of_weights(several, float_cost)[0] / (rate * slower))
    )
    one_row = sum(_operations(several.step)[kind] for kind in _weight_kinds(prompt)) / several.batch
    slowest = 1 / multiplies + unpacking * int8 * slower / one_row
    return AchievedSpeed(
        EngineKind("measured", reads, OWN.links, multiplies, 1 / slowest, OWN.straggling, OWN.handover_us),
        float_cost, alone.ceilings.read_gb_s, prompt.ceilings.int8_gops,
    )  # fmt: skip


def _of_weights(result: _MeasuredTest, float_cost: float | None = None) -> tuple[float, float]:
    """A step's operations as so many of weights, and what one of attention counts: by the ceilings, unless it is
    known."""
    operations, kinds = _operations(result.step), _weight_kinds(result)
    weights = sum(operations[kind] for kind in kinds)
    rest = sum(operations.values()) - weights
    if float_cost is None:
        least = sum(operations[kind] / _gops(result, kind) for kind in kinds)
        float_cost = weights / least / _gops(result, "bf16") if rest else FLOAT_COST
    return weights + float_cost * rest, float_cost


def _weight_kinds(result: _MeasuredTest) -> tuple[str, ...]:
    """Of quantised weights attention is the rest; otherwise both are of one kind, or nearly so, and are not told
    apart."""
    found = _operations(result.step)
    return ("int8", "int6") if found["int8"] + found["int6"] > found["bf16"] + found["f32"] else _KINDS


def _operations(step: _Step) -> dict[str, float]:
    return {kind: getattr(step, f"{kind}_operations") for kind in _KINDS}


def _gops(result: _MeasuredTest, kind: str) -> float:
    found: float = getattr(result.ceilings, f"{kind}_gops")
    return found


def _refuse(name: str, fault: str) -> NoReturn:
    raise UserError(
        f"--bench-model {name}: {fault}; it takes what `homenode bench model MODEL --batch 1,8 --json` prints",
        param="bench_model",
    )
