"""A host as a picture: sockets, in them nodes, in them caches and cores, devices on their nodes, and what is
allowed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from homenode.cli.output.fitted_text import FittedLine
from homenode.cpuset import format_cpu_list
from homenode.host.topology.host import Accelerator, Cpu, Host, Node
from homenode.units import format_bytes, format_count

_CORES_A_LINE = 16
_DISTANCES = 66  # columns that the distances of one node may take, for a line to fit a terminal
_ALLOWED, _FORBIDDEN = "■", "□"
_CLASSES = {0x01: "storage", 0x02: "network", 0x03: "display", 0x0B: "processor", 0x12: "accelerator"}
_MASKS = {
    "none": "",
    "cpuset": " (a cgroup's cpuset)",
    "inherited": " (inherited from whoever started it)",
    "openmp": " (pinned by an OpenMP runtime, by accident: see --ignore-openmp-mask)",
}


def draw_host(host: Host) -> RenderableType:
    """Everything, ready to print."""
    parts: list[RenderableType] = [_headline(host)]
    parts += [_socket(host, socket) for socket in sorted({cpu.socket for cpu in host.cpus})]
    if bare := [node for node in host.nodes if not node.cpus]:
        parts.append(
            Panel(
                Columns([_node_panel(host, node, ()) for node in bare]),
                title="nodes without processors",
                title_align="left",
            )
        )
    if homeless := [chip for chip in host.accelerators.chips if chip.node is None]:
        parts.append(_line("without a known node", ", ".join(_chip(chip) for chip in homeless)))
    if len(host.nodes) > 1:
        parts.append(_distances(host))
    return Group(*parts, *_allowed(host))


def _headline(host: Host) -> FittedLine:
    sockets, nodes = len({cpu.socket for cpu in host.cpus}), len(host.nodes)
    words = [
        host.machine,
        f"Linux {host.kernel}" if host.kernel else "",
        format_count(sockets, "socket"),
        format_count(nodes, "node"),
        format_count(len(host.cores), "core"),
        format_count(len(host.cpus), "CPU"),
        f"{len(host.offline)} offline" if host.offline else "",
    ]
    return FittedLine(Text(" · ".join(word for word in words if word), style="bold"))


def _socket(host: Host, socket: int) -> Panel:
    cpus = [cpu for cpu in host.cpus if cpu.socket == socket]
    nodes = sorted({cpu.node for cpu in cpus if cpu.node is not None})
    if not nodes:
        return Panel(_cores(host, cpus), title=f"socket {socket}", title_align="left")
    panels = [_node_panel(host, host.node_by_id[node], [cpu for cpu in cpus if cpu.node == node]) for node in nodes]
    return Panel(Columns(panels), title=f"socket {socket}", title_align="left", border_style="blue")


def _node_panel(host: Host, node: Node, cpus: Sequence[Cpu]) -> Panel:
    lines: list[RenderableType] = []
    if cpus:
        lines += [Text(f"CPUs {format_cpu_list(cpu.id for cpu in cpus)}"), _cores(host, cpus)]
    chips = [chip for chip in host.accelerators.chips if node.id in (chip.node, chip.memory_node)]
    lines += [Text(_chip(chip), style="magenta") for chip in chips]
    if devices := _devices(host, node):
        lines.append(Text(devices, style="dim"))
    if reserved := ", ".join(f"{count} x {format_bytes(size)}" for size, count in node.huge_pages.items() if count):
        lines.append(Text(f"huge pages {reserved}", style="dim"))
    memory = "no memory" if node.memory == 0 else "memory unknown" if node.memory is None else format_bytes(node.memory)
    return Panel(
        Group(*lines), title=f"node {node.id} · {memory}", title_align="left", border_style="green", expand=False
    )


def _cores(host: Host, cpus: Iterable[Cpu]) -> Group:
    """One line for each last-level cache (several when it is large): a glyph for each thread, cores apart."""
    by_cache: dict[int | None, dict[int, list[Cpu]]] = {}
    for cpu in cpus:
        by_cache.setdefault(cpu.l3, {}).setdefault(cpu.core, []).append(cpu)
    lines = []
    for cache, cores in sorted(by_cache.items(), key=lambda item: -1 if item[0] is None else item[0]):
        glyphs = [_core(host, threads) for threads in cores.values()]
        for start in range(0, len(glyphs), _CORES_A_LINE):
            label = "" if cache is None else "L3 " if start == 0 else "   "
            lines.append(Text.assemble((label, "dim"), Text(" ").join(glyphs[start : start + _CORES_A_LINE])))
    return Group(*lines)


def _core(host: Host, threads: Sequence[Cpu]) -> Text:
    allowed = set(host.allowance.cpus)
    slow = any(cpu.capacity < 1024 for cpu in threads)
    glyph = "".join(_ALLOWED if cpu.id in allowed else _FORBIDDEN for cpu in threads)
    return Text(glyph, style="yellow" if slow else "cyan" if _ALLOWED in glyph else "dim")


def _chip(chip: Accelerator) -> str:
    return f"{chip.kind} {chip.id} {chip.name}".strip() + (f" at {chip.address}" if chip.address else "")


def _devices(host: Host, node: Node) -> str:
    taken = {chip.address for chip in host.accelerators.chips}
    kinds = Counter(
        _CLASSES.get(device.kind >> 16)
        for device in host.devices
        if device.node == node.id and device.address not in taken
    )
    return ", ".join(f"{count} {kind}" for kind, count in sorted((k, c) for k, c in kinds.items() if k))


def _distances(host: Host) -> RenderableType:
    """A table, or where it would be wider than a terminal a line for each node: its neighbours by distance."""
    cell = max(len(str(host.distance(a.id, b.id))) for a in host.nodes for b in host.nodes) + 2
    if len(host.nodes) * cell > _DISTANCES:
        return Group(*(_line(f"node {node.id}", _by_distance(host, node)) for node in host.nodes))
    table = Table(
        "distance", *(str(node.id) for node in host.nodes), title_justify="left", box=None, header_style="dim"
    )
    for node in host.nodes:
        table.add_row(f"node {node.id}", *(str(host.distance(node.id, other.id)) for other in host.nodes))
    return table


def _by_distance(host: Host, node: Node) -> str:
    """`distance 10: 0; 22: 1-3`."""
    others: dict[int, list[int]] = {}
    for other in host.nodes:
        others.setdefault(host.distance(node.id, other.id), []).append(other.id)
    return "distance " + "; ".join(f"{far}: {format_cpu_list(others[far])}" for far in sorted(others))


def _allowed(host: Host) -> list[FittedLine]:
    allowance = host.allowance
    balancing = {True: "on", False: "off", None: "unknown"}[host.numa_balancing]
    lines = [
        _line(
            "allowed",
            f"{len(allowance.cpus)} of {format_count(len(host.cpus), 'CPU')}: "
            f"{format_cpu_list(allowance.cpus)}{_MASKS.get(allowance.mask_origin, '')}; "
            f"memory nodes {format_cpu_list(allowance.mems) or 'unknown'}",
        ),
        _line("quota", "none" if allowance.cpu_quota is None else format_count(allowance.cpu_quota, "CPU")),
        _line("memory limit", "none" if allowance.memory_limit is None else format_bytes(allowance.memory_limit)),
        _line(
            "kernel", f"NUMA balancing {balancing}, transparent huge pages {host.transparent_huge_pages or 'unknown'}"
        ),
        _line(
            "glyphs",
            f"{_ALLOWED} allowed, {_FORBIDDEN} not allowed, one for each thread of a core; yellow: a slower core",
        ),
    ]
    notes = [(finding.severity, finding.message) for finding in (*host.notes, *host.accelerators.notes)]
    notes += [("warning", error.message) for error in host.accelerators.errors]
    return lines + [_line(severity, message) for severity, message in notes]


def _line(name: str, text: str) -> FittedLine:
    return FittedLine(Text.assemble((f"{name}: ", "bold"), text))
