"""What OpenMP libraries are told: a CPU for each thread, how long threads watch for each other."""

from __future__ import annotations

import pytest

from homenode.compute.openmp import UNPINNED, openmp_variables, set_openmp_variables


def test_each_thread_has_its_own_place_in_the_order_of_the_team() -> None:
    found = openmp_variables((6, 2, 3), 100, {})
    assert found["OMP_PLACES"] == "{6},{2},{3}" and found["OMP_PROC_BIND"] == "close"
    assert (found["OMP_NUM_THREADS"], found["OMP_DYNAMIC"]) == ("3", "false")
    assert found["GOMP_SPINCOUNT"] == "3000" and found["KMP_BLOCKTIME"] == "0"


def test_threads_that_share_their_cores_never_watch() -> None:
    assert openmp_variables((0,), 0, {})["GOMP_SPINCOUNT"] == "0"


def test_threads_that_may_run_anywhere_have_no_places() -> None:
    found = openmp_variables((UNPINNED, UNPINNED), 100, {})
    assert found["OMP_NUM_THREADS"] == "2" and not {"OMP_PLACES", "OMP_PROC_BIND"} & found.keys()


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_what_somebody_says_about_waiting_is_kept(name: str) -> None:
    environment = {name: "as given", "OMP_PLACES": "cores"}
    set_openmp_variables((1, 2), 100, environment)
    assert environment[name] == "as given" and environment["OMP_PLACES"] == "{1},{2}"
    assert len({"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & environment.keys()) == 1
