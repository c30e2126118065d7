"""The roofline drawing is well-formed and puts points and roofs where their figures say."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from homenode.bench.compute.kernels import KernelResult
from homenode.bench.compute.roofline import Scale, draw_roofline, roofs_of

_SVG = "{http://www.w3.org/2000/svg}"

Q8_0 = KernelResult(
    format="Q8_0", columns=1024, rows=4096, tokens=1, seconds=1e-4, gb_s=44.6, gops=84.0, cpu_gops=90.0, intensity=1.88,
    path="int8", ceiling_gops=94.0,
    fraction=0.89, limit="read", ceilings={"read_gb_s": 50.0, "int8_gops": 2000.0, "bf16_gops": 1000.0,
        "f32_gops": 500.0}, discarded=(), steady=True,
)  # fmt: skip
MANY = dataclasses.replace(Q8_0, tokens=512, gops=1500.0, intensity=964.0, limit="multiply", fraction=0.75)
BF16 = dataclasses.replace(Q8_0, format="BF16", path="bf16", gops=50.0, intensity=1.0)


def drawn(*results: KernelResult, title: str = "A <title> & more") -> ET.Element:
    return ET.fromstring(draw_roofline(results, title))


def test_every_result_is_a_point_with_its_figures() -> None:
    dots = [c for c in drawn(Q8_0, MANY, BF16).iter(f"{_SVG}circle") if len(c)]
    titles = [d.findtext(f"{_SVG}title") for d in dots]
    assert titles[1] == "Q8_0 1024x4096, 512 tokens: 1500 GOPS, 44.6 GB/s, 75% of its ceiling"
    across, up = ([float(d.attrib[k]) for d in dots] for k in ("cx", "cy"))
    assert across[2] < across[0] < across[1]
    assert up[1] < up[0] < up[2], "more is higher, and the origin of SVG is at the top"
    assert dots[0].attrib["fill"] == dots[1].attrib["fill"] != dots[2].attrib["fill"]


def test_text_is_escaped_and_roofs_are_named() -> None:
    texts = [t.text for t in drawn(Q8_0, BF16).iter(f"{_SVG}text")]
    assert "A <title> & more" in texts
    assert {"reading 50 GB/s", "int8 2000 GOPS", "bf16 1000 GOPS", "Q8_0", "BF16"} <= set(texts)
    assert "f32 500 GOPS" not in texts, "no product of this kind was measured"


def test_points_and_lines_stay_inside_the_drawing() -> None:
    svg = drawn(Q8_0, MANY, BF16)
    width, height = float(svg.attrib["width"]), float(svg.attrib["height"])
    for element in svg.iter():
        assert all(0 <= float(element.attrib[k]) <= width for k in ("x", "x1", "x2", "cx") if k in element.attrib)
        assert all(0 <= float(element.attrib[k]) <= height for k in ("y", "y1", "y2", "cy") if k in element.attrib)


def test_a_single_result_can_be_drawn_and_none_cannot() -> None:
    assert drawn(Q8_0) is not None
    with pytest.raises(ValueError, match="nothing was measured"):
        draw_roofline([], "")


def test_roofs_are_medians() -> None:
    slow = dataclasses.replace(Q8_0, ceilings={**Q8_0.ceilings, "read_gb_s": 10.0, "int8_gops": 100.0})
    assert roofs_of([Q8_0, slow, MANY]).read == 50.0
    assert roofs_of([Q8_0, slow, MANY]).multiply == {"int8": 2000.0}


def test_a_logarithmic_axis_has_equal_ratios_equally_far_apart() -> None:
    axis = Scale(1.0, 1000.0, 0.0, 300.0)
    assert [round(axis.at(v)) for v in (1.0, 10.0, 100.0, 1000.0)] == [0, 100, 200, 300]
    assert axis.ticks() == [1.0, 10.0, 100.0, 1000.0]


def test_png_where_matplotlib_is(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from homenode.bench.compute.roofline_png import write_roofline_png

    write_roofline_png([Q8_0, MANY, BF16], "title", tmp_path / "roof.png")
    assert (tmp_path / "roof.png").read_bytes().startswith(b"\x89PNG")
