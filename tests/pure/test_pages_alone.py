"""Plans and measurements as pages: one file that loads nothing, with every figure of the JSON form in it."""

from __future__ import annotations

import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from homenode.bench.serving.served import Served
from homenode.cli.benchmarks.served_page import served_page
from homenode.cli.main import cli
from homenode.cli.output.html_page import Markup, h, html_page

HOSTS = [("2s/4n/64c/smt2", "fair"), ("tests/hosts/epyc-96cpu-8node.json", "fair"), ("2s/2n/48c/gpu=4", "numa-bind")]
LOADS = re.compile(r"""<(?:script|link|img|iframe|object)\b|\burl\(|@import|\bsrc=""")


class Balanced(HTMLParser):
    """Fails for an element that is not closed where it should be."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "br", "hr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_alone(text: str) -> None:
    parser = Balanced()
    parser.feed(text)
    assert not parser.open and not LOADS.search(text) and "default-src 'none'" in unescape(text)


@pytest.mark.parametrize(("host", "strategy"), HOSTS)
def test_a_plan_as_a_page_has_every_worker(host: str, strategy: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.html"
    words = ["plan", "--from", host, "--strategy", strategy]
    result = CliRunner().invoke(cli, [*words, "--json", "--html", str(file)])
    assert result.exit_code in (0, 1), result.output
    text, plan = file.read_text("utf-8"), json.loads(result.stdout)
    check_alone(text)
    shown = re.findall(r'data-worker="(\d+)" data-cpus="([^"]*)" data-memory-node="(\w+)"', text)
    assert shown == [(str(w["local_rank"]), w["cpus"], str(w["memory_node"])) for w in plan["workers"]]
    assert len(re.findall(r'class="cpu"', text)) == len(set(re.findall(r'data-cpu="(\d+)"', text)))
    assert all(worker["why"].split(" <")[0] in text for worker in plan["workers"])


def test_a_page_goes_with_a_plan_only(tmp_path: Path) -> None:
    file = str(tmp_path / "plan.html")
    result = CliRunner().invoke(cli, ["plan", "--from", "2s/4n/64c", "--requirements", "--html", file])
    assert result.exit_code == 2 and "--html" in result.output
    nowhere = CliRunner().invoke(cli, ["plan", "--from", "1s/1n/2c", "--html", str(tmp_path / "no" / "such.html")])
    assert nowhere.exit_code == 2 and "cannot write" in nowhere.output


def test_figures_as_a_page_are_those_of_the_table() -> None:
    results = [
        Served(n, 2 * n, 1.0, 32, 16, 40.5 * n, 99.25, 0.0123 * n, 0.02, 0.004, 0.005, 0.006, 0.0041) for n in (1, 2)
    ]
    text = served_page("http://127.0.0.1:1/<x>", 32, 16, "today", results)
    check_alone(text)
    assert text.count("<svg") == 3 and "&lt;x&gt;" in text
    for figure in ("40.5", "81.0", "12.3", "24.6"):
        assert f">{figure}<" in text


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", '" onload="x', "&amp;", "\u2028"])
def test_text_is_never_markup(text: str) -> None:
    made = h("p", {"title": text}, text, None, [text, h("b", {}, text)])
    assert isinstance(made, Markup) and "<script" not in made
    assert 'title="" ' not in made
    parser = Balanced()
    parser.feed(html_page(text, made))
    assert not parser.open
