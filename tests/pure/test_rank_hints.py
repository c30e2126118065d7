"""Titles and environments of engines' processes, and the local ranks they stand for."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.engine.executor.processes import driven_device
from homenode.engine.executor.worker_process import PROGRAM
from homenode.host.bind.rank_hints import ROLES, RankHint, local_rank_of, parallelism_of, worker_rank_of
from homenode.host.plan.demand import Parallelism

UNKNOWN = Parallelism()


@pytest.mark.parametrize(
    ("title", "hint"),
    [
        ("VLLM::Worker_TP3", RankHint("worker", tensor_parallel=3)),
        ("VLLM::Worker_DP0_TP1", RankHint("worker", data_parallel=0, tensor_parallel=1)),
        ("VLLM::Worker_PP1_TP0", RankHint("worker", pipeline_parallel=1, tensor_parallel=0)),
        (
            "VLLM::Worker_DP1_PP0_TP7_DCP3_EP15",
            RankHint("worker", data_parallel=1, pipeline_parallel=0, tensor_parallel=7),
        ),
        ("VLLM::Worker_PCP1_TP0", RankHint("worker", tensor_parallel=0, other=("PCP",))),
        ("VLLM::Worker", RankHint("worker")),
        ("mine::Worker_TP1", RankHint("worker", tensor_parallel=1)),  # the prefix can be chosen
        ("vLLM-Omni::DiffusionWorker_TP1", RankHint("worker", tensor_parallel=1)),
        ("VLLM::EngineCore", RankHint("engine_core")),
        ("VLLM::EngineCore_DP0", RankHint("engine_core", data_parallel=0)),
        ("VLLM::APIServer_0", RankHint("api_server")),
        ("VLLM::DPCoordinator", RankHint("coordinator")),
        ("sglang::scheduler", RankHint("worker")),
        ("sglang::scheduler_TP3", RankHint("worker", tensor_parallel=3)),
        ("sglang::scheduler_DP0_TP1_EP1", RankHint("worker", data_parallel=0, tensor_parallel=1)),
        ("sglang::detokenizer", RankHint("detokenizer")),
        ("VLLM::Worker_TP3  ", RankHint("worker", tensor_parallel=3)),  # padded over what was there before
    ],
)
def test_titles(title: str, hint: RankHint) -> None:
    assert worker_rank_of(title, {}) == hint
    assert hint.role in ROLES


@pytest.mark.parametrize(
    "title",
    [
        "",
        "python3",
        "VLLM::Worker_TP",
        "VLLM::Worker_TP3x",
        "VLLM:Worker_TP3",
        "Worker_TP3",
        "/opt/VLLM::Worker_TP3",
        "VLLM::Worker_TP999999",
    ],
)
def test_titles_that_tell_nothing(title: str) -> None:
    """`VLLM::Worker_TP` is what is left of a title in a thread's name of 15 characters: the rank is gone, so it must
    not count as one.
    """
    assert worker_rank_of(title, {}) is None


@pytest.mark.parametrize("name", ["LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"])
def test_environments(name: str) -> None:
    assert worker_rank_of("python3", {name: "3", "PATH": "/bin"}) == RankHint("worker", 3)


@pytest.mark.parametrize("value", ["", "-1", "x", "3.0", "99999", "\u0663"])
def test_environments_that_tell_nothing(value: str) -> None:
    assert worker_rank_of("python3", {"LOCAL_RANK": value}) is None


def test_a_title_is_believed_before_the_environment_and_the_nearest_launcher_before_the_outer() -> None:
    assert worker_rank_of("VLLM::Worker_TP1", {"LOCAL_RANK": "0"}) == RankHint("worker", tensor_parallel=1)
    assert worker_rank_of("python3", {"SLURM_LOCALID": "0", "LOCAL_RANK": "2"}) == RankHint("worker", 2)


@pytest.mark.parametrize(
    ("title", "shape", "rank"),
    [
        ("VLLM::Worker_TP3", Parallelism(tensor_parallel_size=4), 3),
        ("VLLM::Worker_TP3", UNKNOWN, 3),
        ("VLLM::Worker_PP1", UNKNOWN, 1),
        ("VLLM::Worker", UNKNOWN, 0),
        ("VLLM::Worker", Parallelism(tensor_parallel_size=4), None),  # not yet said which
        ("VLLM::Worker_TP4", Parallelism(tensor_parallel_size=4), None),  # not of this deployment
        ("VLLM::Worker_PP1_TP2", Parallelism(pipeline_parallel_size=2, tensor_parallel_size=4), 6),
        ("VLLM::Worker_PP1_TP2", UNKNOWN, None),  # how many tensor ranks a stage has is not known
        (
            "VLLM::Worker_DP1_PP1_TP1",
            Parallelism(data_parallel_size=2, pipeline_parallel_size=2, tensor_parallel_size=2),
            7,
        ),
        ("VLLM::Worker_DP1_TP0", Parallelism(data_parallel_size=2, tensor_parallel_size=2), 2),
        ("VLLM::Worker_PCP1_TP0", Parallelism(tensor_parallel_size=2), None),
        ("VLLM::EngineCore", UNKNOWN, 0),  # a single worker lives inside its engine core
        ("VLLM::EngineCore_DP3", Parallelism(data_parallel_size=4), 3),
        ("VLLM::EngineCore_DP3", Parallelism(data_parallel_size=4, tensor_parallel_size=2), None),
        ("VLLM::APIServer_0", UNKNOWN, None),
        ("VLLM::DPCoordinator", UNKNOWN, None),
        ("sglang::detokenizer", UNKNOWN, None),
        (
            "sglang::scheduler_DP1_TP3",
            Parallelism(data_parallel_size=1, tensor_parallel_size=4),
            3,
        ),  # attention alone is data parallel
    ],
)
def test_local_ranks(title: str, shape: Parallelism, rank: int | None) -> None:
    hint = worker_rank_of(title, {})
    assert hint is not None
    assert local_rank_of(hint, shape) == rank


def test_every_worker_of_a_deployment_has_a_rank_of_its_own() -> None:
    shape = Parallelism(data_parallel_size=2, pipeline_parallel_size=3, tensor_parallel_size=4)
    hints = [
        worker_rank_of(f"VLLM::Worker_DP{d}_PP{p}_TP{t}", {}) for d in range(2) for p in range(3) for t in range(4)
    ]
    assert [local_rank_of(hint, shape) for hint in hints if hint] == list(range(24))


@pytest.mark.parametrize(
    ("line", "sizes"),
    [
        ("vllm serve m", (1, 1, 1)),
        ("vllm serve m --tensor-parallel-size 4", (1, 1, 4)),
        ("vllm serve m --tensor-parallel-size=4 --pipeline_parallel_size 2 -dp 3", (3, 2, 4)),
        ("vllm serve m -tp=8 -dp 16 --data-parallel-size-local 2", (2, 1, 8)),
        ("python -m sglang.launch_server --tp 8 --dp-size 8 --enable-dp-attention", (1, 1, 8)),
        ("python -m sglang.launch_server --tp-size 2 --dp 4", (4, 1, 2)),
        ("vllm serve m -tp", (1, 1, 1)),
        ("vllm serve m -tp x --dp 0 -pp 99999", (1, 1, 1)),
    ],
)
def test_shapes_of_command_lines(line: str, sizes: tuple[int, int, int]) -> None:
    shape = parallelism_of(line.split())
    assert (shape.data_parallel_size, shape.pipeline_parallel_size, shape.tensor_parallel_size) == sizes


@settings(deadline=None, derandomize=True)
@given(
    st.text(max_size=60),
    st.sampled_from(["", "VLLM::Worker", "VLLM::EngineCore", "sglang::scheduler"]),
    st.lists(st.text(max_size=8), max_size=6),
)
def test_nothing_a_process_calls_itself_does_harm(text: str, head: str, argv: list[str]) -> None:
    hint = worker_rank_of(head + text, {"LOCAL_RANK": text})
    if hint is not None:
        rank = local_rank_of(hint, parallelism_of(argv))
        assert rank is None or 0 <= rank < 100_000


OWN = ("-P", "-m", "homenode.engine.worker.main", "7", "4711", "homenode-worker-5")


@pytest.mark.parametrize(("device", "rank"), [("npu:0", 0), ("npu:13", 13), ("npu", 0), ("cuda:1", 1)])
def test_own_workers_are_the_rank_of_their_device(device: str, rank: int) -> None:
    """Not of their number: with --stage-devices cpu,npu:0 worker 1 drives the first NPU."""
    hint = worker_rank_of("/usr/bin/python3", {"LOCAL_RANK": "9"}, (*OWN, device))
    assert hint == RankHint("worker", rank)
    assert local_rank_of(hint, Parallelism()) == rank


@pytest.mark.parametrize(
    "arguments", [OWN, (*OWN, "cpu"), (*OWN, "npu:x"), ("npu:1",), ("-m", "other.main", "npu:1"), OWN[:3], ()]
)
def test_workers_on_cpus_and_others_are_no_ranks(arguments: tuple[str, ...]) -> None:
    """Workers on CPUs pin their threads one by one, which nobody is to undo."""
    assert worker_rank_of("python3", {}, arguments) is None


def test_engine_and_hints_agree_on_the_command_line() -> None:
    """The words that the engine starts a worker with are those that are looked for."""
    started = (PROGRAM, "7", "4711", "homenode-worker-0", driven_device("torch:npu:3"))
    assert worker_rank_of("python3", {}, ("-P", "-m", *started)) == RankHint("worker", 3)
    assert driven_device("cpu") == driven_device("torch:cpu") == ""
