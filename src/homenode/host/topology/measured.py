"""Figures of a machine's nodes as `homenode bench nodes` measured and kept them: one JSON file.

    {"format": "homenode-nodes/1",
     "nodes": [{"node": 0, "memory_node": 0, "threads": 16, "read_gb_s": 120.5, "int8_gops": 2400.0}, ...],
     "pairs": [{"reader": 0, "memory": 1, "read_gb_s": 38.2, "round_trip_ns": 310.0}, ...], "barrier_us": 0.6,
     "barrier_across_us": 1.9}

`memory_node`, where a node's own memory is, may be left out where that is the node itself. There is a pair for every
node and every memory that occurs; one of a node and its own memory only repeats the node's figure, and may be left out.
Unknown keys are left alone, so that later versions may add some.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from homenode.errors import UserError
from homenode.units import format_count

FORMAT = "homenode-nodes/1"
_MOST_BYTES = 16 << 20
_MOST_NODES = 4096
_FIGURES = ("read_gb_s", "int8_gops")


@dataclass(frozen=True, slots=True)
class MeasuredNode:
    """One node's threads: 1e9 bytes a second from memory of their own, which is that of `memory_node`; 1e9 operations a
    second on bytes."""

    node: int
    memory_node: int
    threads: int
    read_gb_s: float
    int8_gops: float


@dataclass(frozen=True, slots=True)
class Measured:
    """The speeds that were measured. read_gb_s: by (reading node, node of the memory). Barriers in microseconds, within
    a node and over all of them.
    """

    nodes: tuple[MeasuredNode, ...]
    read_gb_s: Mapping[tuple[int, int], float]
    barrier_us: float
    barrier_across_us: float


def load_measured(path: str | os.PathLike[str]) -> Measured:
    """The measurement in a file. UserError, naming file and fault, when it cannot be read or is no such measurement."""
    name = str(path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot read the measured nodes {name}: {getattr(error, 'strerror', None) or error}", param="numa_measured"
        ) from error
    if len(data) > _MOST_BYTES:
        _refuse(name, f"it is larger than {_MOST_BYTES >> 20} MiB")
    try:
        raw = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(_fault(name, f"it is not JSON in UTF-8 ({error})"), param="numa_measured") from error
    return parse_measured(raw, name)


def parse_measured(raw: object, name: str = "measurement") -> Measured:
    """The measurement in parsed JSON; `name` is what errors call it. UserError when it is none."""
    if not isinstance(raw, dict):
        _refuse(name, "it holds no JSON object")
    if raw.get("format") != FORMAT:
        _refuse(name, f'its "format" is {raw.get("format")!r}, wanted "{FORMAT}"')
    nodes = tuple(_node(name, entry, at) for at, entry in enumerate(_list(name, raw, "nodes")))
    known = {node.node for node in nodes}
    if not nodes or len(known) != len(nodes):
        _refuse(name, '"nodes" is empty or names a node twice')
    pairs = {(node.node, node.memory_node): node.read_gb_s for node in nodes}
    for at, entry in enumerate(_list(name, raw, "pairs")):
        where = f'"pairs"[{at}]'
        reader, memory = _whole(name, entry, "reader", where), _whole(name, entry, "memory", where)
        if reader not in known:
            _refuse(name, f'{where} reads from node {reader}, which is not in "nodes"')
        pairs[reader, memory] = _positive(name, entry, "read_gb_s", where)
    memories = sorted({memory for _, memory in pairs})
    missing = [(a, b) for a in sorted(known) for b in memories if (a, b) not in pairs]
    if missing:
        _refuse(name, f'"pairs" lacks node {missing[0][0]} reading from node {missing[0][1]}')
    return Measured(
        nodes,
        pairs,
        _positive(name, raw, "barrier_us", "the object"),
        _positive(name, raw, "barrier_across_us", "the object"),
    )


def _node(name: str, entry: object, at: int) -> MeasuredNode:
    where = f'"nodes"[{at}]'
    threads = _whole(name, entry, "threads", where)
    if threads < 1:
        _refuse(name, f"{where} has {format_count(threads, 'thread')}")
    read, multiply = (_positive(name, entry, figure, where) for figure in _FIGURES)
    node = _whole(name, entry, "node", where)
    own = _whole(name, entry, "memory_node", where) if isinstance(entry, dict) and "memory_node" in entry else node
    return MeasuredNode(node, own, threads, read, multiply)


def _list(name: str, raw: Mapping[str, object], key: str) -> list[object]:
    found = raw.get(key)
    if not isinstance(found, list) or len(found) > _MOST_NODES**2:
        _refuse(name, f'"{key}" is no list')
    return found


def _value(name: str, entry: object, key: str, where: str) -> object:
    if not isinstance(entry, dict) or key not in entry:
        _refuse(name, f'{where} has no "{key}"')
    return entry[key]


def _whole(name: str, entry: object, key: str, where: str) -> int:
    found = _value(name, entry, key, where)
    if isinstance(found, bool) or not isinstance(found, int) or found < 0:
        _refuse(name, f'"{key}" of {where} is {found!r}, wanted a whole number from 0 on')
    return found


def _positive(name: str, entry: object, key: str, where: str) -> float:
    found = _value(name, entry, key, where)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < math.inf:
        _refuse(name, f'"{key}" of {where} is {found!r}, wanted a number above 0')
    return float(found)


def _fault(name: str, fault: str) -> str:
    return f"{name} is no measurement of nodes: {fault}. Make one with: homenode bench nodes --out FILE"


def _refuse(name: str, fault: str) -> NoReturn:
    raise UserError(_fault(name, fault), param="numa_measured")
