"""`homenode bench nodes`: how fast each NUMA node reads the memory of each, and how long they need to meet."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from homenode.cli.flags.logs import with_command_log
from homenode.cli.flags.settings import with_some_settings
from homenode.cli.output.report import ERR, OUT, json_errors, print_json
from homenode.engine.config import EngineConfig
from homenode.errors import UserError

if TYPE_CHECKING:
    from homenode.bench.machine.nodes import NodesResult


@click.command()
@with_some_settings(EngineConfig, "isa")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Keep the figures in this file, for --numa-measured."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_command_log
def nodes(isa: str | None, out: Path | None, as_json: bool) -> None:
    """Read bandwidth of every pair of NUMA nodes (whose threads, whose memory), answering times and barriers.

    One thread on each core this process may use. A machine with one node has one pair.
    """
    with json_errors(as_json):
        if out is not None and not os.access(out.parent, os.W_OK):
            raise UserError(f"--out {out}: no file can be made in {out.parent}", param="--out")
        found = _measure(isa)
        if out is not None:
            out.write_text(json.dumps(found.to_json(), indent=1) + "\n", encoding="utf-8")
        if as_json:
            print_json(found.to_json())
        else:
            _print(found)


def _measure(isa: str | None) -> NodesResult:
    from homenode.bench.machine.node_probe import NativeProbe
    from homenode.bench.machine.nodes import bench_teams, measure_nodes, memories
    from homenode.host.discovery.read import read_host
    from homenode.host.topology.source import LiveSource

    host = read_host(LiveSource())  # accelerators too: memory of theirs is not for weights
    teams = bench_teams(host)
    several = len(memories(host, teams)) > 1
    return measure_nodes(host, NativeProbe(isa, several), host.allowance.memory_available, _measuring)


@contextmanager
def _measuring(what: str) -> Iterator[None]:
    """Says on a terminal what is being measured."""
    with ERR.status(f"measuring: {what}"):
        yield


def _print(found: NodesResult) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    memories = sorted({pair.memory for pair in found.pairs})
    columns = [f"from node {memory}" for memory in memories]
    table = Table(
        "threads of",
        "threads",
        *columns,
        "int8 GOPS",
        title="GB/s read, and ns until an answer comes",
        box=SIMPLE,
        padding=(0, 1, 0, 0),
    )
    pairs = {(pair.reader, pair.memory): pair for pair in found.pairs}
    for node in found.nodes:
        cells = []
        for memory in memories:
            pair = pairs[node.node, memory]
            cells.append(
                f"{pair.read_gb_s:.1f}" + (f", {pair.round_trip_ns:.0f} ns" if pair.round_trip_ns is not None else "")
            )
        table.add_row(f"node {node.node}", str(node.threads), *cells, f"{node.int8_gops:.0f}")
    OUT.print(table)
    lines = f"All threads of a node meet in {found.barrier_us:.2f} us"
    lines += (
        f", those of all nodes in {found.barrier_across_us:.2f} us."
        if len(found.nodes) > 1
        else ". There is one node: nothing to compare it with."
    )
    OUT.print(lines, highlight=False)
