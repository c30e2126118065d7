"""Which bundle a worker is in, and who else is on its host."""

from __future__ import annotations

import pytest

from homenode.engine.executor.bundles import Found, GroupName, Neighbours, bundle_of, neighbours

NAME = GroupName("node-1", 77, 0)
OTHER = GroupName("node-1", 77, 1)


def found(worker: int, host: str, *groups: tuple[str, list[str]], workers: int = 4, own: GroupName = NAME) -> Found:
    return neighbours(Neighbours(own, 2, workers, worker), host, groups)


@pytest.mark.parametrize(("bundles", "wanted"), [(4, [0, 1, 2, 3]), (2, [0, 0, 1, 1]), (1, [0, 0, 0, 0])])
def test_bundles_hold_as_many_workers_one_after_the_other(bundles: int, wanted: list[int]) -> None:
    assert [bundle_of(worker, 4, bundles) for worker in range(4)] == wanted


def test_workers_of_a_host_are_counted_over_all_engines_of_a_service() -> None:
    groups = [
        (OTHER.text("x"), ["a", "b"]),
        (NAME.text("y"), ["a", "b", "b", "a"]),
        (GroupName("node-1", 78, 0).text("z"), ["a"] * 4),
        ("", ["b"]),
    ]
    assert [found(worker, "ab"[worker in (1, 2)], *groups) for worker in range(4)] == [
        Found(0, 4, 2),
        Found(0, 4, 2),
        Found(1, 4, 2),
        Found(1, 4, 2),
    ]
    assert [found(worker, "ab"[worker > 1], *groups, own=OTHER) for worker in range(4)] == [
        Found(2, 4, 2),
        Found(3, 4, 2),
    ] * 2


def test_a_worker_whose_group_is_not_known_yet_is_alone() -> None:
    assert found(1, "a", (OTHER.text("x"), ["a", "a"])) == Found(0, 1, 1)
    assert found(1, "b", (NAME.text("x"), ["a", "a"])) == Found(0, 1, 1), "Ray has moved it meanwhile"


def test_names_are_those_of_their_service_only() -> None:
    assert NAME.engine_of(OTHER.text("abc")) == 1
    assert NAME.engine_of(GroupName("node-1", 777, 0).text("abc")) is None
    assert NAME.engine_of("") is None
    assert NAME.text("a") != NAME.text("b")
