"""A plan as a page: the machine with each worker's CPUs in a colour, and the table of `homenode plan`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from homenode.cli.output.html_page import Markup, h, html_page
from homenode.cpuset import format_cpu_list
from homenode.host.plan.plan import ROLES, Plan, WorkerBinding
from homenode.host.topology.host import Host
from homenode.host.topology.machine_map import machine_map
from homenode.units import format_bytes, format_count

_HUES = 8
_LARGE, _NUMBERED = 16, 160  # CPUs up to which they are drawn large, and with their numbers


def plan_page(host: Host, plan: Plan) -> str:
    """The whole document."""
    title = f"{plan.strategy} on {host.cpu_model or host.machine}"
    counts = f"{format_count(len(plan.workers), 'worker')}, {format_count(len(host.allowance.cpus), 'CPU')} allowed"
    return html_page(
        f"homenode plan: {title}",
        h(
            "div",
            {"class": "wrap"},
            h("h1", {"class": "planned"}, title),
            h("p", {"class": "machinehead"}, f"{counts} · host {plan.host}"),
            h("div", {"class": "findings"}, [_finding(**each.to_dict()) for each in plan.findings]),
            _map(host, plan),
            h("div", {"class": "wide", "tabindex": 0, "role": "region", "aria-label": "Workers"}, _table(plan)),
        ),
    )


def _finding(severity: str, code: str, message: str, remedy: str) -> Markup:
    return h("div", {"class": f"finding {severity}", "title": code}, h("strong", {}, message), f" {remedy}")


def _map(host: Host, plan: Plan) -> Markup:
    owners: dict[int, list[int]] = {}
    for number, worker in enumerate(plan.workers):
        for cpu in worker.cpus if worker.bound else ():
            owners.setdefault(cpu, []).append(number)
    kept = {cpu: place.name for place in plan.processes for cpu in place.cpus}
    drawn, count = machine_map(host), len(host.cpus)
    kind = "few" if count <= _LARGE else "some" if count <= _NUMBERED else "dense"

    def draw(number: int) -> Markup:
        of = owners.get(number, ())
        who = ", ".join(f"worker {plan.workers[each].local_rank}" for each in of) or kept.get(number, "nobody")
        marks = {
            "data-hue": of[0] % _HUES if of else None,
            "data-state": "shared" if len(of) > 1 else None,
            "data-mark": "kept" if not of and number in kept else None,
        }
        text = str(number) if kind != "dense" else h("span", {"class": "unseen"}, str(number))
        return h("span", {"class": "cpu", "title": f"CPU {number}: {who}", "data-cpu": number, **marks}, text)

    def node(each: dict[str, Any]) -> Markup:
        name = "CPUs" if each["id"] is None else f"Node {each['id']}"
        size = h("span", {}, format_bytes(each["memory"])) if each["memory"] else None
        caches = [
            h("div", {"class": "cache"}, [h("span", {"class": "core"}, [draw(one) for one in core]) for core in cache])
            for cache in each.get("caches", ())
        ]
        return h(
            "div",
            {"class": "node", "data-node": each["id"]},
            h("p", {"class": "label"}, name, size),
            h("div", {"class": "caches"}, caches) if caches else h("p", {"class": "help"}, "memory without CPUs"),
        )

    def socket(label: str, nodes: Sequence[dict[str, Any]]) -> Markup:
        inside = h("div", {"class": "nodes"}, [node(each) for each in nodes])
        return h("div", {"class": "socket"}, h("p", {"class": "label"}, label), inside)

    sockets = [socket(f"Socket {each['id']}", each["nodes"]) for each in drawn["sockets"]]
    rest = [socket("Memory alone", drawn["memory_nodes"])] if drawn["memory_nodes"] else []
    return h("div", {"class": f"map {kind}"}, [*sockets, *rest])


def _table(plan: Plan) -> Markup:
    roles = [role for role in ROLES if any(worker.roles.get(role) for worker in plan.workers)]
    head = ["Worker", "Device", "CPUs", *roles, "Memory", "Why"]
    rows = [_worker(number, worker, roles) for number, worker in enumerate(plan.workers)]
    rows += [_beside(place.name, place.cpus, place.memory_nodes, place.why, roles) for place in plan.processes]
    why = "threads of the driver in the kernel"
    rows += [_beside(name, cpus, (), why, roles) for name, cpus in plan.kernel_threads.items()]
    cells = [h("td", {}), *(h("th", {"scope": "col"}, text) for text in head)]
    return h("table", {"class": "lines"}, h("thead", {}, h("tr", {}, cells)), h("tbody", {}, rows))


def _worker(number: int, worker: WorkerBinding, roles: Sequence[str]) -> Markup:
    cpus = format_cpu_list(worker.cpus)
    return h(
        "tr",
        {"data-worker": worker.local_rank, "data-cpus": cpus, "data-memory-node": str(worker.memory_node)},
        h("td", {}, h("span", {"class": "swatch", "data-hue": number % _HUES})),
        h("th", {"scope": "row"}, str(worker.local_rank)),
        h("td", {}, str(worker.device)),
        h("td", {}, cpus if worker.bound else "not bound"),
        [h("td", {}, format_cpu_list(worker.roles.get(role, ()))) for role in roles],
        h("td", {}, _nodes(worker.memory_nodes)),
        h("td", {"class": "whyplan"}, worker.why),
    )


def _beside(name: str, cpus: Sequence[int], nodes: Sequence[int], why: str, roles: Sequence[str]) -> Markup:
    return h(
        "tr",
        {},
        h("td", {}),
        h("th", {"scope": "row"}, name),
        h("td", {}),
        h("td", {}, format_cpu_list(cpus) or "not bound"),
        [h("td", {}) for _ in roles],
        h("td", {}, _nodes(nodes)),
        h("td", {"class": "whyplan"}, why),
    )


def _nodes(nodes: Sequence[int]) -> str:
    return f"node {format_cpu_list(nodes)}" if nodes else ""
