"""A roofline drawing: what each product reaches, under the roofs that memory and multipliers are. Plain SVG.

Across: operations for each byte of weights, so more tokens lie further right. Up: 1e9 operations a second. The slanted
roof is read bandwidth, each level one is a kind of multiply. Both axes are logarithmic. See Williams, Waterman,
Patterson, "Roofline" (CACM 52, 2009).
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from homenode.bench.compute.kernels import KernelResult
from homenode.units import format_count

_WIDTH, _HEIGHT = 960, 600
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 190, 50, 60
_COLOURS = (
    "#1f77b4",
    "#d62728",
    "#2ca02c",
    "#9467bd",
    "#ff7f0e",
    "#17becf",
    "#8c564b",
    "#e377c2",
    "#7f7f7f",
    "#bcbd22",
)


@dataclass(frozen=True)
class Roofs:
    """`read`: GB/s; `multiply`: GOPS by kind of product."""

    read: float
    multiply: dict[str, float]


def roofs_of(results: Sequence[KernelResult]) -> Roofs:
    """The medians of what was measured beside the products, for the kinds that occur."""
    kinds = sorted({r.path for r in results})
    return Roofs(
        median(r.ceilings["read_gb_s"] for r in results),
        {kind: median(r.ceilings[f"{kind}_gops"] for r in results) for kind in kinds},
    )


@dataclass(frozen=True)
class Scale:
    """A logarithmic axis: `low` .. `high` to positions `begin` .. `end`."""

    low: float
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        """Return where a value lies."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.begin + share * (self.end - self.begin)

    def ticks(self) -> list[float]:
        """The powers of ten inside."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        return [10.0**p for p in powers if self.low <= 10.0**p <= self.high]


def draw_roofline(results: Sequence[KernelResult], title: str) -> str:
    """An SVG document. ValueError without results."""
    if not results:
        raise ValueError("nothing was measured: there is nothing to draw")
    roofs = roofs_of(results)
    x = _axis([r.intensity for r in results], _LEFT, _WIDTH - _RIGHT)
    y = _axis([*(r.gops for r in results), *roofs.multiply.values()], _HEIGHT - _BOTTOM, _TOP)
    size = {"width": str(_WIDTH), "height": str(_HEIGHT), "viewBox": f"0 0 {_WIDTH} {_HEIGHT}"}
    svg = ET.Element(
        "svg", {"xmlns": "http://www.w3.org/2000/svg", "font-family": "sans-serif", "font-size": "13", **size}
    )
    ET.SubElement(svg, "rect", {"width": "100%", "height": "100%", "fill": "white"})
    _text(svg, _LEFT, 28, title, {"font-size": "16"})
    _draw_axes(svg, x, y)
    _draw_roofs(svg, x, y, roofs)
    _draw_points(svg, x, y, results)
    ET.indent(svg)
    return ET.tostring(svg, encoding="unicode", xml_declaration=True) + "\n"


def _axis(values: Iterable[float], begin: float, end: float) -> Scale:
    """Return the scale from half the smallest to twice the largest value."""
    known = list(values)
    return Scale(min(known) / 2, max(known) * 2, begin, end)


def _draw_axes(svg: ET.Element, x: Scale, y: Scale) -> None:
    for tick in x.ticks():
        _line(svg, (x.at(tick), y.begin), (x.at(tick), y.end), "#dddddd")
        _text(svg, x.at(tick), y.begin + 20, f"{tick:g}", {"text-anchor": "middle"})
    for tick in y.ticks():
        _line(svg, (x.begin, y.at(tick)), (x.end, y.at(tick)), "#dddddd")
        _text(svg, x.begin - 8, y.at(tick) + 4, f"{tick:g}", {"text-anchor": "end"})
    _line(svg, (x.begin, y.begin), (x.end, y.begin), "black")
    _line(svg, (x.begin, y.begin), (x.begin, y.end), "black")
    _text(svg, (x.begin + x.end) / 2, y.begin + 45, "operations for each byte of weights", {"text-anchor": "middle"})
    across = f"rotate(-90 22 {(y.begin + y.end) / 2:.1f})"
    _text(svg, 22, (y.begin + y.end) / 2, "1e9 operations a second", {"text-anchor": "middle", "transform": across})


def _draw_roofs(svg: ET.Element, x: Scale, y: Scale, roofs: Roofs) -> None:
    """Each level roof from where it meets the slanted one; the slanted one up to the highest."""
    top = max(roofs.multiply.values())
    foot = max(x.low, y.low / roofs.read)
    ridge = min(x.high, top / roofs.read)
    if ridge > foot:
        _line(svg, (x.at(foot), y.at(foot * roofs.read)), (x.at(ridge), y.at(ridge * roofs.read)), "black", "2")
        _text(svg, x.at(foot) + 6, y.at(foot * roofs.read) - 14, f"reading {roofs.read:.0f} GB/s", {})
    for kind, gops in roofs.multiply.items():
        begin = min(max(x.low, gops / roofs.read), x.high)
        _line(svg, (x.at(begin), y.at(gops)), (x.end, y.at(gops)), "black", "2")
        _text(svg, x.end + 6, y.at(gops) + 4, f"{kind} {gops:.0f} GOPS", {})


def _draw_points(svg: ET.Element, x: Scale, y: Scale, results: Sequence[KernelResult]) -> None:
    """A dot for each result with its figures as a tooltip, and a legend of the formats."""
    colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(dict.fromkeys(r.format for r in results))}
    for r in results:
        where = {"cx": f"{x.at(r.intensity):.1f}", "cy": f"{y.at(r.gops):.1f}", "r": "4.5"}
        dot = ET.SubElement(svg, "circle", {**where, "fill": colours[r.format], "fill-opacity": "0.75"})
        ET.SubElement(dot, "title").text = point_label(r)
    for i, (name, colour) in enumerate(colours.items()):
        middle = y.begin - 18 * (len(colours) - i)
        ET.SubElement(svg, "circle", {"cx": str(_WIDTH - _RIGHT + 16), "cy": f"{middle:.1f}", "r": "5", "fill": colour})
        _text(svg, _WIDTH - _RIGHT + 28, middle + 4, name, {})


def point_label(r: KernelResult) -> str:
    """A result in one line."""
    return (
        f"{r.format} {r.columns}x{r.rows}, {format_count(r.tokens, 'token')}: {r.gops:.0f} GOPS, {r.gb_s:.1f} "
        f"GB/s, {r.fraction:.0%} of its ceiling"
    )


def _line(svg: ET.Element, a: tuple[float, float], b: tuple[float, float], colour: str, width: str = "1") -> None:
    ends = {"x1": f"{a[0]:.1f}", "y1": f"{a[1]:.1f}", "x2": f"{b[0]:.1f}", "y2": f"{b[1]:.1f}"}
    ET.SubElement(svg, "line", {**ends, "stroke": colour, "stroke-width": width})


def _text(svg: ET.Element, x: float, y: float, text: str, more: dict[str, str]) -> None:
    ET.SubElement(svg, "text", {"x": f"{x:.1f}", "y": f"{y:.1f}", **more}).text = text
