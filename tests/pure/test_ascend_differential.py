"""The documented Ascend strategies against the allocator of vllm-ascend itself, over the same texts of npu-smi.

The allocator is read from an installed `vllm_ascend`, or from the file that HOMENODE_VLLM_ASCEND names (its module
`cpu_binding.py`, for instance out of a wheel that was unpacked); what it imports of vLLM and torch is stood in for, as
it needs neither to plan. Hosts are those on which both are to agree: docs/placement/ascend.md lists where they do not.
"""

from __future__ import annotations

import importlib.util
import io
import logging
import os
import re
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from homenode.cpuset import format_cpu_list, parse_cpu_list
from homenode.errors import PlacementError
from homenode.host.discovery.read import read_host
from homenode.host.plan.demand import Demand
from homenode.host.plan.select import make_plan
from homenode.host.topology.source import CommandResult, RecordedSource
from tests.examples import examples
from tests.npu_hosts import Chip, double_chips, kernel_files, map_text, process_text, single_chips, topo_text

VARIABLE = "HOMENODE_VLLM_ASCEND"


def allocator_file() -> Path | None:
    """`cpu_binding.py` of vllm-ascend; None where it cannot be had."""
    if given_path := os.environ.get(VARIABLE):
        return Path(given_path)
    found = importlib.util.find_spec("vllm_ascend")
    places = found.submodule_search_locations if found else None
    file = Path(next(iter(places))) / "cpu_binding.py" if places else None
    return file if file is not None and file.is_file() else None


FILE = allocator_file()
pytestmark = pytest.mark.skipif(FILE is None, reason=f"needs vllm-ascend, or {VARIABLE}=.../cpu_binding.py")


class _DeviceType:
    """Names of device types, which the allocator only compares."""

    A2, A3, _310P, A5 = "A2", "A3", "310P", "950"


def load_allocator(style: str) -> types.ModuleType:
    """The module, on a machine of this device type."""
    assert FILE is not None
    stand_ins: dict[str, dict[str, Any]] = {
        "vllm": {},
        "vllm.logger": {"logger": logging.getLogger("vllm")},
        "vllm_ascend": {},
        "vllm_ascend.utils": {"AscendDeviceType": _DeviceType, "get_ascend_device_type": lambda: style},
        "psutil": {},
        "regex": dict(vars(re)),
    }
    before = {name: sys.modules.get(name) for name in stand_ins}
    try:
        for name, values in stand_ins.items():
            sys.modules[name] = types.ModuleType(name)
            vars(sys.modules[name]).update(values)
        spec = importlib.util.spec_from_file_location("cpu_binding_of_vllm_ascend", FILE)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        for name, old in before.items():
            if old is None:
                del sys.modules[name]
            else:
                sys.modules[name] = old


def field_plan(
    style: str, nodes: Mapping[int, str], files: Mapping[str, str], texts: Mapping[str, str], visible: Sequence[int]
) -> dict[int, tuple[list[int], list[int], list[int]]]:
    """Main, acl and release CPUs of each running NPU; RuntimeError where the allocator refuses."""
    module: Any = load_allocator(style)
    lscpu = "CPU NODE\n" + "".join(f"{cpu} {node}\n" for node, cpus in nodes.items() for cpu in parse_cpu_list(cpus))
    answers = {**texts, "lscpu -e=CPU,NODE": lscpu}
    module.execute_command = lambda words: (answers[" ".join(words)], 0)
    module.ASCEND_RT_VISIBLE_DEVICES = ",".join(map(str, visible))
    module.open = lambda path: io.StringIO(files[path])
    module.os = types.SimpleNamespace(path=types.SimpleNamespace(exists=files.__contains__), environ={})
    plan = module.CpuAlloc(0)
    plan.build_cpu_pools()
    plan.allocate()
    return {npu: (plan.assign_main[npu], plan.assign_acl[npu], plan.assign_rel[npu]) for npu in plan.npu_cpu_pool}


def own_plan(
    files: Mapping[str, str], texts: Mapping[str, str], visible: Sequence[int]
) -> dict[int, tuple[list[int], list[int], list[int]]]:
    """The same of `--strategy ascend`."""
    commands = {line: CommandResult(text) for line, text in texts.items()}
    host = read_host(RecordedSource("aarch64", dict(files), commands))
    plan = make_plan("ascend", host, Demand(visible=tuple(visible) or None))
    refused = [finding for finding in plan.findings if finding.severity == "error" and "rank" in finding.message]
    if refused:  # the field refuses every rank where it refuses one
        raise PlacementError(refused[0].code, refused[0].message, seen="", wanted="", remedy="")
    roles = {worker.device: worker.roles for worker in plan.workers if worker.device is not None}
    return {npu: (list(of["main"]), list(of["acl"]), list(of["release"])) for npu, of in sorted(roles.items()) if of}


@st.composite
def machines(draw: st.DrawFn) -> tuple[str, dict[int, str], list[Chip], str, list[int]]:
    """Style, nodes, chips, allowed CPUs, visible devices: contiguous nodes, logical numbers from 0 on."""
    style = draw(st.sampled_from(["A2", "A3"]))
    count, width = draw(st.integers(1, 4)), draw(st.integers(8, 48))
    nodes = {node: f"{node * width}-{node * width + width - 1}" for node in range(count)}
    npus = draw(st.integers(1, 4)) * 2
    busy = draw(st.sets(st.integers(0, npus - 1), min_size=1))
    if style == "A3":
        chips = double_chips(range(npus), sorted(busy))
    else:
        near = [draw(st.integers(0, count - 1)) for _ in range(npus)]
        chips = [Chip(npu, 0, npu, nodes[node], npu in busy) for npu, node in enumerate(near)]
    cpus = range(count * width)
    forbidden = draw(st.sets(st.sampled_from(cpus), max_size=len(cpus) // 2))
    allowed = sorted(set(cpus) - forbidden)
    visible = sorted(draw(st.sets(st.sampled_from(sorted(busy))))) if draw(st.booleans()) else []
    return style, nodes, chips, format_cpu_list(allowed), visible


@settings(deadline=None, derandomize=True, max_examples=examples(300))
@given(machine=machines())
@example(("A3", {n: f"{n * 80}-{n * 80 + 79}" for n in range(8)}, double_chips(range(16)), "0-639", [3, 7]))
@example(("A2", {0: "0-23", 1: "24-47"}, single_chips({0: "0-23", 1: "0-23", 2: "24-47"}, [0, 2]), "0-47", [0]))
def test_main_acl_and_release_cpus_are_those_of_the_field(
    machine: tuple[str, dict[int, str], list[Chip], str, list[int]],
) -> None:
    style, nodes, chips, allowed, visible = machine
    files = kernel_files(nodes, allowed, "", "")
    texts = {
        "npu-smi info -m": map_text(style, chips),
        "npu-smi info": process_text(style, chips),
        "npu-smi info -t topo": topo_text(style, chips),
    }
    try:
        field: object = field_plan(style, nodes, files, texts, visible)
    except RuntimeError as error:
        field = f"refused: {error}"
    try:
        own: object = own_plan(files, texts, visible)
    except PlacementError:
        own = "refused"
    event("refused by both" if own == "refused" else "planned by both")
    assert own == field or (own == "refused" and str(field).startswith("refused")), (own, field)
