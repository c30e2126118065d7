"""The bundle of a Ray placement group that a worker is in, and which other workers of its service are on the same host.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class GroupName:
    """Name of the placement group of one engine. `node` and `process`: of the service, as Ray and its host call them;
    `engine`: counts those of the service.
    """

    node: str
    process: int
    engine: int

    def text(self, suffix: str) -> str:
        """A name for Ray. `suffix`: a word that no other group has had, as that of an engine before may be
        there still.
        """
        return f"{self._service}{self.engine}.{suffix}"

    def engine_of(self, name: str) -> int | None:
        """Return which engine of this service the group of this name belongs to; None: of another service."""
        number = name.removeprefix(self._service).partition(".")[0]
        return int(number) if name.startswith(self._service) and number.isdecimal() else None

    @property
    def _service(self) -> str:
        return f"homenode.{self.node}.{self.process}."


@dataclass(frozen=True)
class Neighbours:
    """A worker that is to know its place: `worker` of the `workers` of its engine, which is one of `engines` alike."""

    own: GroupName
    engines: int
    workers: int
    worker: int


@dataclass(frozen=True)
class Found:
    """Number `index` of `count` workers of the service on its host; so many of its `engines` have their
    hosts already.
    """

    index: int
    count: int
    engines: int


def bundle_of(worker: int, workers: int, bundles: int) -> int:
    """The bundle of a worker: each has as many workers, one after the other."""
    return worker // (workers // bundles)


def neighbours(given: Neighbours, host: str, groups: Sequence[tuple[str, Sequence[str]]]) -> Found:
    """`groups`: all there are in the cluster, with the host of each bundle. A worker whose own group is not among them
    is alone.
    """
    hosts: dict[int, Sequence[str]] = {}
    for name, nodes in groups:
        engine = given.own.engine_of(name)
        if engine is not None and len(nodes) and given.workers % len(nodes) == 0:
            hosts[engine] = nodes
    here = [
        (engine, worker)
        for engine, nodes in sorted(hosts.items())
        for worker in range(given.workers)
        if nodes[bundle_of(worker, given.workers, len(nodes))] == host
    ]
    mine = (given.own.engine, given.worker)
    return Found(here.index(mine), len(here), len(hosts)) if mine in here else Found(0, 1, len(hosts))
