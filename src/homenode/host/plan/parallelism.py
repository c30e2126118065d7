"""The sizes of a deployment: checked, and turned into ranks, engines and their workers. Workers are numbered engine by
engine, as vLLM does."""

from __future__ import annotations

from homenode.errors import PlacementError
from homenode.host.plan.demand import Demand, Parallelism

MOST = 4096  # of anything that is counted here; a larger number is a typing error


def check_sizes(demand: Demand) -> None:
    """Raises PlacementError bad_parallelism for a count outside 1..MOST, for more workers than that, and for a rank
    beyond the ranks there are."""
    parallelism = demand.parallelism
    counts = {
        "--data-parallel-size": parallelism.data_parallel_size,
        "--tensor-parallel-size": parallelism.tensor_parallel_size,
        "--pipeline-parallel-size": parallelism.pipeline_parallel_size,
        "--devices": parallelism.devices or 1,
        "--workers": 1 if demand.workers is None else demand.workers,
        "--api-server-count": 1 if parallelism.api_server_count is None else parallelism.api_server_count,
        "data-parallel x tensor-parallel x pipeline-parallel size": world_size(parallelism),
    }
    for what, count in counts.items():
        if not 1 <= count <= MOST:
            raise _error(f"{what} is {count}", str(count), f"1 to {MOST}", f"Mend {what}.")
    if not 0 <= parallelism.data_parallel_rank < parallelism.data_parallel_size and not parallelism.external_launcher:
        seen = f"rank {parallelism.data_parallel_rank} of {parallelism.data_parallel_size}"
        wanted = f"a rank from 0 to {parallelism.data_parallel_size - 1}"
        raise _error(
            "there is no such data-parallel rank",
            seen,
            wanted,
            "Give --data-parallel-size too, or mend --data-parallel-rank.",
        )


def world_size(parallelism: Parallelism) -> int:
    """Workers of all engines together."""
    return parallelism.data_parallel_size * parallelism.ranks_per_engine


def sizes_in_words(parallelism: Parallelism) -> str:
    """The flags of the sizes above 1, as they would be written."""
    sizes = {
        "--data-parallel-size": parallelism.data_parallel_size,
        "--tensor-parallel-size": parallelism.tensor_parallel_size,
        "--pipeline-parallel-size": parallelism.pipeline_parallel_size,
    }
    return " ".join(f"{flag} {size}" for flag, size in sizes.items() if size > 1)


def worker_index(parallelism: Parallelism, local_rank: int) -> int:
    """Return which worker of this host one is: its local rank behind those of the engines before its own. Ray and
    torchrun count over all engines.
    """
    if parallelism.external_launcher:
        return local_rank
    return local_rank + parallelism.data_parallel_rank * parallelism.ranks_per_engine


def engines(parallelism: Parallelism, workers: int) -> dict[int, range]:
    """The workers of each engine by data-parallel rank. One engine has them all where nothing else is told."""
    if parallelism.data_parallel_size == 1 or parallelism.external_launcher:
        return {parallelism.data_parallel_rank: range(workers)}
    each = parallelism.ranks_per_engine
    return {
        rank: range(rank * each, min((rank + 1) * each, workers))
        for rank in range(parallelism.data_parallel_size)
        if rank * each < workers
    }


def _error(message: str, seen: str, wanted: str, remedy: str) -> PlacementError:
    return PlacementError("bad_parallelism", message, seen=seen, wanted=wanted, remedy=remedy)
