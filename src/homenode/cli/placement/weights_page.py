"""Where a model's weights would lie, as a page: the policy, the reason with the speed predicted of each, and a bar for
every node.
"""

from __future__ import annotations

from homenode.cli.output.html_page import Markup, h, html_page
from homenode.cpuset import format_cpu_list
from homenode.model.weights.numa_layout import NumaLayout
from homenode.units import format_bytes

_IN_TURN = "all in turn"


def weights_page(model: str, made: NumaLayout) -> str:
    """The whole document."""
    told = made.weights.to_json()
    title = f"Weights of {model}: {told['policy']}"
    cells = [h("th", {"scope": "col"}, text) for text in ("Node", "Threads", "CPUs", "Weights", "Free before", "Share")]
    rows = [_row(made, int(node), kept, told["total_bytes"]) for node, kept in told["nodes"].items()]
    table = h("table", {"class": "lines"}, h("thead", {}, h("tr", {}, cells)), h("tbody", {}, rows))
    return html_page(
        f"homenode plan: {title}",
        h(
            "div",
            {"class": "wrap"},
            h("h1", {"class": "planned"}, title),
            h("p", {"class": "machinehead"}, f"{format_bytes(told['total_bytes'])} in all"),
            h("p", {"class": "whyplan"}, told["why"]),
            h("div", {"class": "findings"}, [_finding(**each.to_dict()) for each in made.plan.findings]),
            h("div", {"class": "wide", "tabindex": 0, "role": "region", "aria-label": "Weights by node"}, table),
        ),
    )


def _finding(severity: str, code: str, message: str, remedy: str) -> Markup:
    return h("div", {"class": f"finding {severity}", "title": code}, h("strong", {}, message), f" {remedy}")


def _row(made: NumaLayout, node: int, kept: dict[str, int | None], total: int) -> Markup:
    teams = [team for team in made.plan.teams if team.memory_node == node]
    cpus = sorted(cpu for team in teams for cpu in team.cpus)
    here, free = kept["bytes"] or 0, kept["free"]
    meter = {"min": 0, "max": max(total, 1), "value": here, "aria-label": f"Share of node {node}"}
    return h(
        "tr",
        {"data-weight-node": node, "data-bytes": here},
        h("th", {"scope": "row"}, _IN_TURN if node < 0 else f"node {node}"),
        h("td", {}, str(len(cpus)) if cpus else ""),
        h("td", {}, format_cpu_list(cpus)),
        h("td", {}, format_bytes(here)),
        h("td", {}, format_bytes(free) if free else ""),
        h("td", {}, h("meter", meter)),
    )
