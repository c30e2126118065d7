"""Workloads and traces: what they come to, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from homenode.errors import UserError
from homenode.simulate.traces import read_trace
from homenode.simulate.workload import BLOCK, Job, Workload, synthetic
from tests.examples import examples

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n"
)
MOONCAKE = (
    '{"timestamp": 0, "input_length": 1030, "output_length": 6, "hash_ids": [7, 8, 9]}\n{"timestamp": 2500, '
    '"input_length": 3, "output_length": 4, "hash_ids": [7]}\n'
)


def written(folder: Path, text: str) -> str:
    file = folder / "trace"
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_a_poisson_workload_is_the_same_for_the_same_seed() -> None:
    one, same, other = (synthetic(f"poisson:rate=4,in=512,out=128,n=1000,seed={seed}") for seed in (1, 1, 2))
    assert one and same and other and one.jobs == same.jobs and one.jobs != other.jobs
    assert len(one.jobs) == 1000 and one.jobs[-1].at == pytest.approx(250, rel=0.15)
    assert (one.jobs[0].prompt, one.jobs[0].output, one.clients) == (512, 128, 0)


def test_clients_ask_again_until_all_was_asked() -> None:
    workload = synthetic("closed:clients=2,in=8,out=4,n=3")
    assert workload and len(list(workload.begin())) == 2
    assert workload.after(1.5) == Job(1.5, 8, 4)
    assert workload.after(2.0) is None


@pytest.mark.parametrize(
    "text",
    ["poisson:rate=0", "poisson:rate=nan", "poisson:n=0", "poisson:n=1e9", "poisson:what=1", "poisson:rate",
        "closed:clients=0", "closed:in=1.5", "closed:in=inf", "closed:n=1,n=2"],
)  # fmt: skip
def test_figures_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--workload"):
        synthetic(text)


def test_other_text_is_no_synthetic_workload() -> None:
    assert synthetic("trace.csv") is None


def test_azure_times_begin_at_zero(tmp_path: Path) -> None:
    jobs = read_trace(written(tmp_path, AZURE)).jobs
    assert [(job.prompt, job.output) for job in jobs] == [(4808, 10), (3180, 8)]
    assert jobs[0].at == 0 and jobs[1].at == pytest.approx(0.052, abs=1e-6)


def test_mooncake_prompts_share_their_blocks(tmp_path: Path) -> None:
    first, second = read_trace(written(tmp_path, MOONCAKE), speed=2.0).jobs
    assert second.at == 1.25
    ids = first.tokens(0, 1000)
    assert len(ids) == 1030 and ids[:4] == [7, 0, 0, 0] and ids[BLOCK] == 8 and ids[2 * BLOCK] == 9
    assert second.tokens(1, 1000) == ids[:3]


def test_prompts_without_blocks_differ() -> None:
    assert Job(0.0, 5, 1).tokens(12345, 100) == [45, 23, 1, 0, 0]
    assert Job(0.0, 1, 1).tokens(1, 100) != Job(0.0, 1, 1).tokens(2, 100)


def test_the_first_requests_only(tmp_path: Path) -> None:
    assert len(read_trace(written(tmp_path, AZURE), limit=1).jobs) == 1


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "no requests"),
        ("a,b,c\n1,2,3\n", "line 1"),
        (AZURE + "now,1,2\n", "line 4"),
        (AZURE + "2023-11-16 18:17:03,1\n", "line 4: it has 2 values"),
        (AZURE + "2023-11-16 18:17:03,-1,2\n", "line 4: -1 prompt"),
        (AZURE + "2023-11-16 18:17:03,99999999999,2\n", "line 4"),
        (MOONCAKE + "{", "line 3: it is no JSON"),
        (MOONCAKE + "[1]", "line 3: it is no JSON object"),
        ('{"timestamp": true, "input_length": 1, "output_length": 1}', "must be numbers"),
        ('{"timestamp": NaN, "input_length": 1, "output_length": 1}', "must be numbers"),
        ('{"timestamp": 0, "input_length": 1.5, "output_length": 1}', "must be numbers"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [-1]}', "hash_ids"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": {"a": 1}}', "hash_ids"),
        ("{" + "[" * 5000, "no JSON"),
        ("{" + "x" * (1 << 20), "longer than"),
    ],
)
def test_faults_of_a_trace_are_named(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(UserError, match=fault):
        read_trace(written(tmp_path, text))


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "trace"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="cannot read"):
        read_trace(str(file))
    with pytest.raises(UserError, match="cannot read"):
        read_trace(str(tmp_path / "missing"))


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "any"
    file.write_text(text, encoding="utf-8", errors="replace")
    try:
        assert isinstance(read_trace(str(file)), Workload)
    except UserError as error:
        assert str(file) in error.message
