"""The pages about placement say what the toolkit does: every code, every strategy, every flag, and every example as it
is printed here.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from homenode.cli.main import cli
from homenode.cpuset import format_cpu_list, parse_cpu_list
from homenode.host.discovery.read import read_host
from homenode.host.plan.select import STRATEGIES
from homenode.testing.hosts.synthetic import synthetic
from tests.codes_in_source import codes_in, severities_in
from tests.paths import ROOT

PAGES = ROOT / "docs" / "placement"
SOURCE = ROOT / "src" / "homenode"
COMMANDS = ("host", "plan", "run", "bind", "verify", "doctor")
# Two strategies that have their page with the one that chooses them.
PAGE_OF = {"global-slice": "ascend", "topo-affinity": "ascend"}

# Codes that are put together while the program runs, by where that is done.
COMPUTED = {"host/plan/policies/numa_bind.py": {"numa_bind_nodes_ignored", "numa_bind_cpus_ignored"}}
# What `--json` calls errors that have no code (cli/output/report.py).
WITHOUT_CODE = {"bad_input", "host_refused"}

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ROW = re.compile(r"^\| ((?:`[a-z0-9_]+`(?:, )?)+) \|", re.MULTILINE)
_LIST = re.compile(r"(?<![\w.-])\d+-\d+(?:,\d+(?:-\d+)?)*")


def text_of(page: str) -> str:
    return (PAGES / f"{page}.md").read_text(encoding="utf-8")


def pages() -> list[str]:
    return sorted(path.stem for path in PAGES.glob("*.md"))


def run(line: str) -> Result:
    words = shlex.split(line)
    assert words[0] == "homenode"
    return CliRunner(env={"COLUMNS": "80"}).invoke(cli, words[1:])


# Codes.


@cache
def codes_of_source() -> set[str]:
    found = codes_in(SOURCE, ("host", "cli"))
    places = {place.rpartition(":")[0] for place in found.computed}
    assert places == set(COMPUTED), "a code is computed somewhere else: name what it can be in COMPUTED"
    return found.codes.union(WITHOUT_CODE, *COMPUTED.values())


def codes_of_page() -> list[str]:
    return [code for row in _ROW.findall(text_of("failures")) for code in re.findall(r"`([a-z0-9_]+)`", row)]


def test_every_code_of_the_source_is_on_the_page_of_failures_and_no_other() -> None:
    source, page = codes_of_source(), set(codes_of_page())
    assert len(source) > 100, "the source was not understood"
    assert source - page == set(), "these codes are not on docs/placement/failures.md"
    assert page - source == set(), "these codes of docs/placement/failures.md are nowhere in the source"


def test_findings_have_the_severity_that_the_page_says() -> None:
    rows = [line.split("|") for line in text_of("failures").splitlines() if _ROW.match(line)]
    page = {code: cells[2] for cells in rows for code in re.findall(r"`([a-z0-9_]+)`", cells[1])}
    source = severities_in(SOURCE, ("host",))
    assert sum(map(len, source.values())) > 50, "the source was not understood"
    assert {code: told for code, told in source.items() if not all(word in page[code] for word in told)} == {}


def test_no_code_is_explained_twice() -> None:
    codes = codes_of_page()
    assert sorted(codes) == sorted(set(codes))


def test_names_with_underscores_are_of_the_source() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in (SOURCE / "host").rglob("*.py"))
    words = set(re.findall(r"[a-z]+(?:_[a-z0-9]+)+", source)) | codes_of_source()
    named = {(page, word) for page in pages() for word in re.findall(r"`([a-z]+(?:_[a-z0-9]+)+)`", text_of(page))}
    assert {(page, word) for page, word in named if word not in words} == set()


def test_codes_are_found_where_a_parameter_or_a_field_hands_them_on(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        "class Problems:\n"
        "    def add(self, code: str, message: str) -> None:\n"
        "        PlacementError(code, message)\n"
        "class _Grammar:\n"
        "    kind: str\n"
        "    name: str\n"
        "    def bad(self) -> None:\n"
        "        raise PlacementError(self.name, 'x')\n"
        "def _told(message: str, *, word: str) -> None:\n"
        "    Finding('info', word if message else 'by_default', message)\n"
        "_Grammar('CPU', 'of_field')\n"
        "_told('x', word='by_keyword')\n"
        "Finding('info', 'made_' + 'up', 'x')\n"
    )
    (tmp_path / "two.py").write_text(
        "def f(problems, seen):\n    problems.add('by_method', 'x')\n    seen.add('not_one')\n    _told('x', "
        "word='of_another')\n"
    )
    found = codes_in(tmp_path)
    assert found.codes == {"of_field", "by_default", "by_keyword", "by_method"}
    assert found.computed == {"one.py:13"}


# Strategies and flags.


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_has_a_page_with_a_drawing(strategy: str) -> None:
    page = PAGE_OF.get(strategy, strategy)
    assert f"`{strategy}`" in text_of("index")
    assert strategy in text_of(page)
    assert any(language == "text" and "|--" in block for language, block in _BLOCK.findall(text_of(page)))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_is_named(command: str) -> None:
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    commands = [found, *(found.commands.values() if isinstance(found, click.Group) else ())]
    flags = {
        flag
        for one in commands
        for param in one.params
        for flag in (*param.opts, *param.secondary_opts)
        if flag.startswith("--")
    }
    written = set(re.findall(r"--[a-z]+(?:-[a-z]+)*", "".join(text_of(page) for page in pages())))
    assert flags - written == set()


def test_every_page_is_in_the_list_of_pages() -> None:
    listed = text_of("index").rpartition("```{toctree}")[2].split("```")[0].split()
    assert [*sorted(listed[2:]), "index"] == sorted(pages(), key=lambda page: (page == "index", page))


# Examples.


def examples() -> Iterator[tuple[str, list[tuple[str, list[str]]], str]]:
    """Page, commands that read a made-up host with the lines they are said to print, and the drawing that
    follows them.
    """
    for page in pages():
        blocks = [*_BLOCK.findall(text_of(page)), ("", "")]
        for (language, block), (next_language, next_block) in pairwise(blocks):
            commands = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:] if language == "console" else []
            shown = [
                (line, output.splitlines()) for line, _, output in (command.partition("\n") for command in commands)
            ]
            if made_up := [(line, output) for line, output in shown if re.search(r"--from \d", line)]:
                yield page, made_up, next_block if next_language == "text" and "|" in next_block else ""


EXAMPLES = list(examples())


@pytest.mark.parametrize(("line", "output"), [example for _, commands, _ in EXAMPLES for example in commands])
def test_examples_print_what_the_page_says(line: str, output: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from homenode.cli.output import report

    monkeypatch.delitem(vars(report), "OUT", raising=False)
    printed = run(line).stdout.splitlines()
    wanted = "\n".join(".*" if text == "..." else re.escape(text.rstrip()) + " *" for text in output)
    assert output, "the page shows nothing of it"
    assert re.fullmatch(wanted, "\n".join(printed), re.DOTALL), "\n".join(printed)


@pytest.mark.parametrize(("commands", "drawing"), [(commands, drawing) for _, commands, drawing in EXAMPLES if drawing])
def test_drawings_show_the_plans_above_them(commands: list[tuple[str, list[str]]], drawing: str) -> None:
    """Each list of CPUs in a drawing is that of a node, of a pool or a role or a process, of the part of one on a node,
    or a line of such a list.
    """
    known: set[str] = set()
    for line, _ in commands:
        plan = json.loads(run(line.replace("--explain", "--json")).stdout)
        nodes = [set(node.cpus) for node in read_host(synthetic(re.findall(r"--from (\S+)", line)[0])).nodes]
        known |= {*(format_cpu_list(cpus) for cpus in nodes), *plan["pools"].values()}
        for place in (*plan["workers"], *plan["processes"]):
            known |= {place["cpus"], *place.get("roles", {}).values()}
            known |= {format_cpu_list(cpus.intersection(parse_cpu_list(place["cpus"]))) for cpus in nodes}
    drawn = set(_LIST.findall(drawing))
    assert len(drawn) > 2
    assert {text for text in drawn if not any(f",{text}," in f",{other}," for other in known)} == set()
