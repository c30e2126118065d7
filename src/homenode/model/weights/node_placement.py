"""On which NUMA node every row of every matrix lies: decided from the layout, the teams and the policy, before a byte
moves.

shard       |-- rows of node 0's threads --|-- rows of node 1's --|   one copy, each row in the node that multiplies it
mirror      |------- all rows, node 0 -----|
            |------- all rows, node 1 -----|                          a copy on each node that holds memory
replicate   as mirror, one copy for each team: engines of their own; experts that they keep in common once, in turn
interleave  |0|1|0|1|0|1| ...                                         one copy, page by page; no row has one node
local       |-- all rows on the node of the only team --|

The native core keeps rows in groups of 32 and gives each thread a run of groups (csrc/weights/weight_pieces.cpp), so
that is where a matrix is cut.
"""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from homenode.dtypes import BY_NAME
from homenode.errors import InternalError, UserError
from homenode.host.plan.numa.node_teams import NodeTeam
from homenode.model.weights.layout import MatrixLayout, WeightLayout, padded_row_bytes
from homenode.numa_policy import PLANNED_POLICIES, WHOLE_POLICIES, NumaPolicy
from homenode.units import format_count

GROUP_ROWS = 32  # rows that stand together in memory: kGroupRows of csrc/quant/coding.h

Ranges = tuple[tuple[int, int], ...]  # rows, each as [first, past the last)
GroupBytes = Callable[[str, int], int]  # of GROUP_ROWS rows kept in a format, by its name and the columns


@dataclass(frozen=True)
class MatrixNodes:
    """One matrix. `nodes`: the rows that each memory node holds; empty where pages are interleaved, and no row has one
    node.

    `node_bytes`: what it takes of each node, groups of rows filled up. `size`: of one copy.
    """

    name: str
    rows: int
    size: int
    nodes: Mapping[int, Ranges]
    node_bytes: Mapping[int, int]


@dataclass(frozen=True)
class WeightNodes:
    """`policy`: any but auto. `nodes`: bytes by memory node, and 0 for nodes that compute only. `size`: bytes of one
    copy of everything.

    `vector_bytes`: of norms and biases in one copy; they are on the first node, and wherever matrices are whole under
    mirror and replicate. `room`: bytes that each node has, None where that is not known.
    """

    policy: NumaPolicy
    why: str
    matrices: tuple[MatrixNodes, ...]
    nodes: Mapping[int, int]
    size: int
    vector_bytes: int
    room: Mapping[int, int | None]

    @property
    def total(self) -> int:
        """Bytes on all nodes."""
        return sum(self.nodes.values())

    @property
    def too_full(self) -> dict[int, tuple[int, int]]:
        """Nodes whose part of the weights alone is more than they have, with the bytes wanted and there."""
        known = {node: room for node, room in self.room.items() if room is not None}
        return {node: (self.nodes[node], room) for node, room in known.items() if self.nodes[node] > room}

    def on(self, node: int) -> WeightNodes:
        """Return what lies on one node, as far as `total` and `too_full` go."""
        return replace(self, nodes={node: self.nodes[node]}, room={node: self.room.get(node)})

    def to_json(self) -> dict[str, Any]:
        """`{"policy", "why", "nodes": {"0": {"bytes", "free"}}, "model_bytes", "total_bytes", "vector_bytes",
        "parameters"}`; `parameters`: the rows of each matrix and those that each node holds, `{name: {"rows", "nodes":
        {"0": [[first, past_last], ...]}}}`.
        """
        return {
            "policy": self.policy,
            "why": self.why,
            "nodes": {
                str(node): {"bytes": size, "free": self.room.get(node)} for node, size in sorted(self.nodes.items())
            },
            "model_bytes": self.size,
            "total_bytes": self.total,
            "vector_bytes": self.vector_bytes,
            "parameters": {
                m.name: {
                    "rows": m.rows,
                    "nodes": {str(node): [list(run) for run in runs] for node, runs in m.nodes.items()},
                }
                for m in self.matrices
            },
        }


def member_rows(rows: int, members: int) -> tuple[tuple[int, int], ...]:
    """The rows of each of `members` threads, as the native core cuts a matrix: runs of whole groups, as even as they
    can be, in the order of the threads. Where there are fewer groups than threads some have none (first = past the
    last).
    """
    groups = -(-rows // GROUP_ROWS)
    cuts = [min(rows, groups * member // members * GROUP_ROWS) for member in range(members + 1)]
    return tuple(itertools.pairwise(cuts))


def stored_group_bytes(target: str, columns: int) -> int:
    """Bytes of a group of rows as their storage format has them. The native core knows better where it packs otherwise
    (`packed_bytes`).
    """
    return GROUP_ROWS * padded_row_bytes(BY_NAME[target], columns)


def plan_weight_nodes(
    layout: WeightLayout,
    teams: Sequence[NodeTeam],
    policy: NumaPolicy,
    mirror_patterns: Sequence[str] = (),
    why: str = "",
    group_bytes: GroupBytes = stored_group_bytes,
    owners: Mapping[str, int] = MappingProxyType({}),
) -> WeightNodes:
    """Give every row its node.

    `teams`: the nodes that compute, one under `local` (numa_policy.numa_plan). `mirror_patterns`: under `shard`,
    matrices whose names match one of these (fnmatch) are mirrored. `owners`: under `replicate`, the teams of matrices
    that are there once, by name: their engines keep them in common. Raises UserError for a pattern that matches no
    matrix.
    """
    if policy not in PLANNED_POLICIES or not teams or (policy == NumaPolicy.LOCAL and len(teams) > 1):
        raise InternalError(
            f"a layout was asked for with policy {policy} and {len(teams)} teams; auto and local are settled before"
        )
    _check_patterns(mirror_patterns, [*(m.name for m in layout.matrices), *layout.other_parts.names])
    in_common = owners if policy == NumaPolicy.REPLICATE else {}
    matrices = tuple(
        _matrix(m, [teams[in_common[m.name]]], NumaPolicy.LOCAL, group_bytes)
        if m.name in in_common
        else _matrix(m, teams, matrix_policy(m.name, policy, mirror_patterns), group_bytes)
        for m in layout.matrices
    )
    nodes = dict.fromkeys([*(team.memory_node for team in teams), *(team.node for team in teams)], 0)
    for matrix in matrices:
        for node, size in matrix.node_bytes.items():
            nodes[node] += size
    for node in _vector_homes(teams, policy):
        nodes[node] += layout.vector_bytes
    size = sum(m.size for m in matrices) + layout.vector_bytes
    return WeightNodes(
        policy, why, matrices, nodes, size, layout.vector_bytes, {team.memory_node: team.memory for team in teams}
    )


def matrix_policy(name: str, policy: NumaPolicy, mirror_patterns: Sequence[str]) -> NumaPolicy:
    """Return how a matrix lies in a model that lies by `policy`. Plans and loading both ask here."""
    mirrored = policy == NumaPolicy.SHARD and any(fnmatch.fnmatchcase(name, pattern) for pattern in mirror_patterns)
    return NumaPolicy.MIRROR if mirrored else policy


def _check_patterns(patterns: Sequence[str], names: Sequence[str]) -> None:
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            raise UserError(
                f"--numa-mirror-tensors {pattern!r} matches none of the "
                f"{format_count(len(names), 'matrix', 'matrices')} of this model; they are called like {names[0]} "
                f"and {names[-1]}, and * stands for any text",
                param="numa_mirror_tensors",
            )


def _matrix(
    matrix: MatrixLayout, teams: Sequence[NodeTeam], policy: NumaPolicy, group_bytes: GroupBytes
) -> MatrixNodes:
    one_group = group_bytes(matrix.target, matrix.columns)
    size = -(-matrix.rows // GROUP_ROWS) * one_group
    if policy == NumaPolicy.INTERLEAVE:
        return MatrixNodes(matrix.name, matrix.rows, size, {}, _evenly(size, _memory_nodes(teams)))
    if policy == NumaPolicy.SHARD:
        rows = _rows_by_node(matrix.rows, teams)
        nodes = {
            node: sum(-(-(past - first) // GROUP_ROWS) for first, past in runs) * one_group
            for node, runs in rows.items()
        }
        return MatrixNodes(matrix.name, matrix.rows, size, rows, nodes)
    whole = _whole_nodes(teams, policy)
    everything: Ranges = ((0, matrix.rows),)
    return MatrixNodes(
        matrix.name,
        matrix.rows,
        size,
        dict.fromkeys(whole, everything),
        {node: whole.count(node) * size for node in whole},
    )


def _rows_by_node(rows: int, teams: Sequence[NodeTeam]) -> dict[int, Ranges]:
    """The rows that each memory node holds; neighbours' runs are joined. A node none of whose threads has rows is
    missing.
    """
    owners = [team.memory_node for team in teams for _ in team.cpus]
    found: dict[int, list[tuple[int, int]]] = {}
    for node, (first, past) in zip(owners, member_rows(rows, len(owners)), strict=True):
        if first == past:
            continue
        runs = found.setdefault(node, [])
        if runs and runs[-1][1] == first:
            first = runs.pop()[0]
        runs.append((first, past))
    return {node: tuple(runs) for node, runs in found.items()}


def _whole_nodes(teams: Sequence[NodeTeam], policy: NumaPolicy) -> tuple[int, ...]:
    """Nodes that hold a matrix whole. Replicas are engines of their own: two that take memory from one node keep a copy
    each there.
    """
    return tuple(team.memory_node for team in teams) if policy == NumaPolicy.REPLICATE else _memory_nodes(teams)


def _vector_homes(teams: Sequence[NodeTeam], policy: NumaPolicy) -> tuple[int, ...]:
    return _whole_nodes(teams, policy) if policy in WHOLE_POLICIES else _memory_nodes(teams)[:1]


def _memory_nodes(teams: Iterable[NodeTeam]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(team.memory_node for team in teams))


def _evenly(size: int, nodes: Sequence[int]) -> dict[int, int]:
    return {node: size // len(nodes) + (place < size % len(nodes)) for place, node in enumerate(nodes)}
