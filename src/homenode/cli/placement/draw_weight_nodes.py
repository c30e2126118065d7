"""The places where a model's weights would lie, as tables: bytes by node, then the rows of each kind of
matrix by node.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from homenode.cli.output.fitted_text import FittedLine, FittedTable
from homenode.cli.placement.draw_plan import draw_findings
from homenode.cpuset import format_cpu_list
from homenode.model.weights.node_placement import MatrixNodes, WeightNodes
from homenode.model.weights.numa_layout import NumaLayout
from homenode.units import format_bytes

_MOST_COLUMNS = 6  # nodes; with more, a line says how far they differ


def draw_weight_nodes(made: NumaLayout) -> RenderableType:
    """Everything, ready to print."""
    weights, plan = made.weights, made.plan
    head = Text(
        f"--numa {plan.policy}: one copy is {format_bytes(weights.size)}, in all {format_bytes(weights.total)}",
        style="bold",
    )
    return Group(
        FittedLine(head),
        FittedLine(f"why: {plan.why}"),
        _by_node(made),
        _by_kind(weights),
        *draw_findings(plan.findings),
    )


def _by_node(made: NumaLayout) -> FittedTable:
    weights = made.weights
    table = FittedTable("node", "threads", "CPUs", "weights", "free")
    teams = {team.node: team for team in made.plan.teams}
    for node, size in sorted(weights.nodes.items()):
        team = teams.get(node)
        free = weights.room.get(node)
        threads = (str(len(team.cpus)), format_cpu_list(team.cpus)) if team else ("", "")
        other_memory = f" (memory of node {team.memory_node})" if team and team.memory_node != node else ""
        table.add_row(
            str(node), *threads, format_bytes(size) + other_memory, "not told" if free is None else format_bytes(free)
        )
    return table


def _by_kind(weights: WeightNodes) -> FittedTable:
    """A line for the matrices of one kind that are spread alike, the layers' in one."""
    kinds: dict[tuple[object, ...], list[MatrixNodes]] = {}
    for matrix in weights.matrices:
        kinds.setdefault((_kind(matrix.name), matrix.rows, tuple(sorted(matrix.nodes.items()))), []).append(matrix)
    nodes = sorted(weights.nodes)
    wide = len(nodes) > _MOST_COLUMNS
    heads = ("fewest", "most") if wide else tuple(f"node {node}" for node in nodes)
    table = FittedTable("matrix", "count", "rows", *heads, title="rows of each node")
    for members in kinds.values():
        first = members[0]
        cells = (
            _extremes(first, nodes)
            if wide
            else [_runs(first.nodes.get(node, ())) if first.nodes else "pages in turn" for node in nodes]
        )
        table.add_row(_kind(first.name), str(len(members)), str(first.rows), *cells)
    return table


def _kind(name: str) -> str:
    """`model.layers.0.self_attn.q_proj.weight` -> `*.self_attn.q_proj`."""
    return re.sub(r"\.\d+(?=\.)", ".*", name).removeprefix("model.").removeprefix("layers.").removesuffix(".weight")


def _extremes(matrix: MatrixNodes, nodes: Sequence[int]) -> list[str]:
    if not matrix.nodes:
        return ["pages in turn", ""]
    rows = [sum(past - first for first, past in matrix.nodes.get(node, ())) for node in nodes]
    return [str(min(rows)), str(max(rows))]


def _runs(runs: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{first}-{past - 1}" for first, past in runs)
