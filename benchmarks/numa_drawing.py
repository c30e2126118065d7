"""docs/numa-policies.svg: where the rows of a matrix lie under each policy, and which memory each node's threads read.
Plain SVG.

One panel a policy, two nodes each: above, the threads and the rows they multiply; below, the memory and the rows that
lie there.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

DRAWING = Path(__file__).resolve().parent.parent / "docs" / "numa-policies.svg"

_ROWS = 8
_PANEL, _GAP, _TOP, _HEIGHT = 190, 14, 58, 330
_NODE, _CELL = 82, 16
_THREADS_AT, _MEMORY_AT = 96, 178
_COLOURS = ("#4e79a7", "#f28e2b")  # of rows that threads of the first and of the second node multiply
_HERE, _AWAY, _NOTHING = "#3a923a", "#c03d3e", "#eeeeee"


@dataclass(frozen=True, slots=True)
class Panel:
    """One policy. work: rows that each node's threads multiply. held: rows in each node's memory. crossing: whether
    threads read the other's."""

    policy: str
    what: str
    work: tuple[tuple[int, ...], tuple[int, ...]]
    held: tuple[tuple[int, ...], tuple[int, ...]]
    crossing: bool = False


_ALL = tuple(range(_ROWS))
_FIRST, _SECOND = _ALL[: _ROWS // 2], _ALL[_ROWS // 2 :]
PANELS = (
    Panel("shard", "one copy, rows with their threads", (_FIRST, _SECOND), (_FIRST, _SECOND)),
    Panel("mirror", "a copy on every node", (_FIRST, _SECOND), (_ALL, _ALL)),
    Panel("replicate", "an engine and a copy a node", (_ALL, _ALL), (_ALL, _ALL)),
    Panel("interleave", "one copy, page by page", (_FIRST, _SECOND), (_ALL[::2], _ALL[1::2]), crossing=True),
    Panel("local", "one node, the others idle", (_ALL, ()), (_ALL, ())),
)


def draw() -> str:
    """The SVG document."""
    width = len(PANELS) * (_PANEL + _GAP) + _GAP
    size = {"width": str(width), "height": str(_HEIGHT), "viewBox": f"0 0 {width} {_HEIGHT}"}
    svg = ET.Element(
        "svg", {"xmlns": "http://www.w3.org/2000/svg", "font-family": "sans-serif", "font-size": "12", **size}
    )
    ET.SubElement(svg, "title").text = "Where the rows of a matrix lie under each policy"
    ET.SubElement(svg, "rect", {"width": "100%", "height": "100%", "fill": "white"})
    for at, panel in enumerate(PANELS):
        _panel(svg, _GAP + at * (_PANEL + _GAP), panel)
    _legend(svg)
    ET.indent(svg)
    return ET.tostring(svg, encoding="unicode", xml_declaration=True) + "\n"


def _panel(svg: ET.Element, left: int, panel: Panel) -> None:
    _text(svg, left, 24, panel.policy, {"font-size": "16", "font-weight": "bold"})
    _text(svg, left, 44, panel.what, {"fill": "#555555"})
    for node in (0, 1):
        x = left + node * (_NODE + 20)
        box = {
            "x": str(x - 5),
            "y": str(_TOP),
            "width": str(_NODE + 10),
            "height": "210",
            "fill": "none",
            "stroke": "#999999",
            "rx": "4",
        }
        ET.SubElement(svg, "rect", box)
        _text(svg, x, _TOP + 18, f"node {node}", {})
        _cells(svg, x, _THREADS_AT, panel.work[node], panel)
        _cells(svg, x, _MEMORY_AT + 34, panel.held[node], panel)
        _text(svg, x, _THREADS_AT - 4, "threads", {"font-size": "10", "fill": "#555555"})
        _text(svg, x, _MEMORY_AT + 30, "memory", {"font-size": "10", "fill": "#555555"})
    for reader in (0, 1):
        for memory in (0, 1):
            if set(panel.work[reader]) & set(panel.held[memory]) and (reader == memory or panel.crossing):
                _arrow(svg, left, reader, memory)


def _cells(svg: ET.Element, left: int, top: int, rows: tuple[int, ...], panel: Panel) -> None:
    """All rows as a block of two lines; those that are not here are pale."""
    for row in _ALL:
        owner = 1 if row in panel.work[1] and row not in panel.work[0] else 0
        place = {
            "x": str(left + row % 4 * (_CELL + 4)),
            "y": str(top + row // 4 * (_CELL + 4)),
            "width": str(_CELL),
            "height": str(_CELL),
        }
        ET.SubElement(svg, "rect", {**place, "fill": _COLOURS[owner] if row in rows else _NOTHING})


def _arrow(svg: ET.Element, left: int, reader: int, memory: int) -> None:
    """From the memory up to the threads that read it."""
    middle = _NODE // 2 - 5
    x1, x2 = (left + node * (_NODE + 20) + middle for node in (memory, reader))
    y1, y2 = _MEMORY_AT + 16, _THREADS_AT + 2 * (_CELL + 4) + 6
    colour = _HERE if reader == memory else _AWAY
    ET.SubElement(
        svg,
        "line",
        {"x1": str(x1), "y1": str(y1), "x2": str(x2), "y2": str(y2), "stroke": colour, "stroke-width": "2.5"},
    )
    ET.SubElement(svg, "circle", {"cx": str(x2), "cy": str(y2), "r": "4", "fill": colour})


def _legend(svg: ET.Element) -> None:
    lines = (
        (_COLOURS[0], "rows that node 0 multiplies (or every node)"),
        (_COLOURS[1], "rows that node 1 multiplies"),
        (_HERE, "read from the node itself"),
        (_AWAY, "read over the link"),
    )
    x = _GAP
    for colour, text in lines:
        ET.SubElement(svg, "rect", {"x": str(x), "y": str(_HEIGHT - 34), "width": "14", "height": "14", "fill": colour})
        _text(svg, x + 20, _HEIGHT - 22, text, {})
        x += 60 + 7 * len(text)


def _text(svg: ET.Element, x: int, y: int, text: str, more: dict[str, str]) -> None:
    ET.SubElement(svg, "text", {"x": str(x), "y": str(y), **more}).text = text


def main() -> None:
    """Write the drawing."""
    DRAWING.write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
