"""What the engine reaches, out of a bench's JSON: the shares that made its figures come back, and what is no such file
is refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homenode.errors import UserError
from homenode.simulate.achieved import TYPICAL, load_achieved, read_achieved
from homenode.simulate.costs import FLOAT_COST

READ, INT8, INT6, BF16 = 40.0, 300.0, 600.0, 200.0
WEIGHTS, OPERATIONS, ATTENTION = 350e6, 1e9, 5e7


def bench(reads: float, multiplies: float, unpacking: float, kind: str = "int6") -> dict[str, Any]:
    """Of a machine and an engine with these shares: `multiplies` of what the kind's ceiling allows, `unpacking` seconds
    a step.
    """
    gops = {"int8": INT8, "int6": INT6, "bf16": BF16, "f32": BF16}

    def result(test: str, batch: int, tokens: int, rows: int) -> dict[str, Any]:
        multiply = (rows * OPERATIONS / gops[kind] + rows * ATTENTION / BF16) / 1e9 / multiplies + unpacking
        seconds = max(WEIGHTS / (READ * 1e9 * reads), multiply) if test == "decode" else multiply - unpacking
        operations = {f"{name}_operations": 0.0 for name in gops}
        operations[f"{kind}_operations"] += rows * OPERATIONS
        operations["bf16_operations"] += rows * ATTENTION
        return {
            "test": test, "batch": batch, "tokens": tokens, "tok_s": rows / seconds,
            "step": {"bytes": WEIGHTS, **operations},
            "ceilings": {"read_gb_s": READ, **{f"{name}_gops": value for name, value in gops.items()}},
        }  # fmt: skip

    return {"results": [result("prefill", 1, 512, 512), result("decode", 1, 32, 1), result("decode", 8, 32, 8)]}


def read(found: object) -> Any:
    return read_achieved(json.dumps(found).encode(), "bench.json")


@given(st.floats(0.3, 1.0), st.floats(0.3, 1.0), st.floats(0.0, 0.004), st.sampled_from(["int8", "int6"]))
def test_shares_come_back(reads: float, multiplies: float, unpacking: float, kind: str) -> None:
    found = read(bench(reads, multiplies, unpacking, kind))
    gops = {"int8": INT8, "int6": INT6}[kind]
    assert found.kind.reads == pytest.approx(
        min(reads, WEIGHTS / (READ * 1e9) / max(1e-12, _step(reads, multiplies, unpacking, gops)))
    )
    assert found.kind.multiplies * INT8 == pytest.approx(multiplies * gops)
    assert found.float_cost == pytest.approx(gops / BF16)


def _step(reads: float, multiplies: float, unpacking: float, gops: float) -> float:
    return max(WEIGHTS / (READ * 1e9 * reads), (OPERATIONS / gops + ATTENTION / BF16) / 1e9 / multiplies + unpacking)


def test_unpacking_is_what_eight_tokens_take_beyond_their_multiplications() -> None:
    unpacking = 0.01  # 8 tokens: 36 ms of multiplying with it, 8.75 ms of reading
    found = read(bench(1.0, 0.5, unpacking))
    assert (1 / found.kind.alone - 1 / found.kind.multiplies) * OPERATIONS / (INT8 * 1e9) == pytest.approx(unpacking)


def test_a_step_that_reading_limits_says_nothing_of_unpacking() -> None:
    found = read(bench(0.2, 1.0, 0.0))
    assert found.kind.alone == pytest.approx(found.kind.multiplies)


def test_attention_of_unquantised_weights_is_not_told_apart() -> None:
    found = read(bench(0.9, 0.8, 0.0, "bf16"))
    assert (found.kind.multiplies * INT8, found.float_cost) == (pytest.approx(0.8 * BF16), FLOAT_COST)


def _without(name: str) -> dict[str, Any]:
    found = bench(1.0, 1.0, 0.0)
    return {"results": [one for one in found["results"] if (one["test"], one["batch"]) != (name, 1)]}


def _with(key: str, value: object) -> dict[str, Any]:
    found = bench(1.0, 1.0, 0.0)
    place = found["results"][1]
    for part in key.split(".")[:-1]:
        place = place[part]
    place[key.split(".")[-1]] = value
    return found


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[",
        b"{}",
        b'{"results": 3}',
        b"[" * 100_000,
        b"\xff",
        json.dumps({"results": []}).encode(),
        b" " * ((16 << 20) + 1),
    ]
    + [json.dumps(_without(name)).encode() for name in ("prefill", "decode")]
    + [
        json.dumps(_with(key, value)).encode()
        for key in ("tok_s", "ceilings.read_gb_s", "ceilings.int8_gops", "step.bytes")
        for value in (0, -1.0, 1e300, "x", None)
    ]
    + [json.dumps(_with("step.f32_operations", -1)).encode()],
)
def test_what_is_no_bench_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(UserError, match=r"--bench-model some\.json: ") as refused:
        read_achieved(data, "some.json")
    assert refused.value.param == "bench_model"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--bench-model .*none\.json: No such file"):
        load_achieved(str(tmp_path / "none.json"))


def test_without_a_bench_typical_shares_count() -> None:
    assert TYPICAL.float_cost == FLOAT_COST
