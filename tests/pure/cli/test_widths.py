"""`plan`, `host`, `doctor` and `simulate` on a terminal of 80 columns, over recorded hosts: no line is longer, and no
word is cut."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from homenode.cli.main import cli
from homenode.cli.output import report
from homenode.cli.output.fitted_text import FittedLine, FittedTable, column_widths, fitted_line, wrap_words
from homenode.host.discovery import read, snapshot
from homenode.host.topology.host import Host
from homenode.host.topology.source import Source
from tests.paths import ROOT

HOSTS = sorted(path for path in (ROOT / "tests" / "hosts").glob("*.json") if path.stem != "expected")
SHAPE = "shape:layers=24,hidden=896,heads=14,kv_heads=2,intermediate=4864,vocab=151936,format=Q4_0,tied=1"
WORKLOAD = "closed:clients=2,in=64,out=4,n=2"
COMMANDS = {
    "host": ("host",),
    "plan": ("plan",),
    "explain": ("plan", "--explain"),
    "requirements": ("plan", "--requirements", "--workers", "2"),
    "weights": ("plan", "--weights", "builtin", "--numa", "auto"),
    "doctor": ("doctor",),
}
SYNTHETIC = ("1s/1n/1c", "2s/4n/64c/smt2", "2s/8n/128c/smt2", "4s/4n/96c/smt2", "2s/2n/8c")


@pytest.fixture(scope="module", autouse=True)
def hosts_are_read_once() -> Iterator[None]:
    """Reading a recording takes longer than what is printed of it, and each is printed many times."""
    honest, kept = read.read_host, dict[tuple[int, bool], tuple[Source, Host]]()

    def read_host(source: Source, *, accelerators: bool = True) -> Host:
        key = id(source), accelerators  # as long as the source is kept, nothing else has its id
        if key not in kept:
            kept[key] = source, honest(source, accelerators=accelerators)
        return kept[key][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot, "load_recording", cache(snapshot.load_recording))
        patch.setattr(read, "read_host", read_host)
        yield


def shown(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], width: int, *, terminal: bool = True) -> str:
    """What a command prints on a terminal of that width, without colours. Its exit code is 0 or 1, or it is refused."""
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, color_system=None, soft_wrap=True)
    monkeypatch.setattr(report, "OUT", console, raising=False)
    result = CliRunner().invoke(cli, list(words))
    assert result.exit_code in (0, 1, 2) and (result.exception is None or isinstance(result.exception, SystemExit))
    return file.getvalue()


def words_of(text: str) -> set[str]:
    """Words, and elements of lists, without the lines around them and the names of a block's lines."""
    return set(re.split(r"[\s,:│┃╭╮╰╯─━┏┓┡┩└┘┬┴┼╇┳┻█]+", text))


def check(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    narrow, wide = shown(monkeypatch, words, 80), shown(monkeypatch, words, 4000)
    too_long = [line for line in narrow.splitlines() if len(line) > 80]
    assert too_long == []
    assert "…" not in narrow
    assert words_of(wide) - words_of(narrow) == set()
    if words[0] != "host":
        piped = shown(monkeypatch, words, 80, terminal=False)
        assert words_of(piped) == words_of(narrow)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.stem)
def test_recorded_hosts_fit_80_columns(monkeypatch: pytest.MonkeyPatch, host: Path, command: str) -> None:
    check(monkeypatch, (*COMMANDS[command], "--from", str(host)))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("host", SYNTHETIC)
def test_hosts_in_a_line_fit_80_columns(monkeypatch: pytest.MonkeyPatch, host: str, command: str) -> None:
    check(monkeypatch, (*COMMANDS[command], "--from", host))


@pytest.mark.parametrize("host", SYNTHETIC)
@pytest.mark.parametrize("more", [(), ("--compare", "numa"), ("--data-parallel-size", "2")], ids=" ".join)
def test_simulations_fit_80_columns(monkeypatch: pytest.MonkeyPatch, host: str, more: tuple[str, ...]) -> None:
    check(monkeypatch, ("simulate", "--from", host, "--model", SHAPE, "--workload", WORKLOAD, *more))


WORDS = st.lists(st.text("abc-,=é", min_size=1, max_size=12), max_size=30)


@given(words=WORDS, width=st.integers(20, 90), margin=st.integers(0, 30))
def test_lines_are_cut_between_words_and_behind_commas_only(words: list[str], width: int, margin: int) -> None:
    text = " " * margin + " ".join(words)
    lines = wrap_words(text, width)
    assert "".join("".join(lines).split()) == "".join(text.split()), "nothing is lost or changed"
    for before, after in pairwise(lines):
        assert before.endswith(",") or f"{before.split(' ')[-1]} {after.split()[0]}" in text
    longest = max((len(piece) for word in words for piece in word.split(",")), default=0)
    assert all(
        len(line) <= max(width, min(margin + 4, max(0, width - 20)) + longest + 12, margin + longest + 12)
        for line in lines
    )


@given(words=WORDS, width=st.integers(20, 90))
def test_a_cut_line_keeps_its_styles(words: list[str], width: int) -> None:
    line = Text.assemble(("warning: ", "bold"), " ".join(words))
    cut = fitted_line(line, width)
    assert cut.plain.split("\n") == wrap_words(line.plain, width)
    bold = "".join(cut.plain[span.start : span.end] for span in cut.spans if span.style == "bold")
    assert bold.split() == ["warning:"]


@given(
    rows=st.lists(st.lists(st.text("ab ,", max_size=30), min_size=3, max_size=3), min_size=1, max_size=5),
    available=st.integers(0, 100),
)
def test_columns_fit_or_are_told_not_to(rows: list[list[str]], available: int) -> None:
    widths = column_widths(rows, available)
    pieces = [max(len(piece) for row in rows for piece in re.split(r"(?<=,)(?!,)|\s", row[n])) for n in range(3)]
    if widths is None:
        assert sum(pieces) > available
    else:
        assert sum(widths) <= max(available, sum(pieces))
        assert all(width >= piece for width, piece in zip(widths, pieces, strict=True))


def drawn(shown: FittedLine | FittedTable, width: int, *, terminal: bool = True) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, color_system=None)
    console.print(shown, soft_wrap=False, crop=False)
    return file.getvalue()


def test_a_table_that_cannot_fit_becomes_a_block_for_each_row() -> None:
    table = FittedTable("rank", "CPUs", "why", title="a plan")
    table.add_row("0", "0-15,64-79", "the-longest-word-of-all-that-fit")
    table.add_row("1", "16-31", "")
    assert drawn(table, 30).splitlines() == [
        "a plan",
        "rank: 0",
        "  CPUs: 0-15,64-79",
        "  why:",
        "      the-longest-word-of-all-that-fit",
        "rank: 1",
        "  CPUs: 16-31",
    ]
    assert "┃ rank ┃" in drawn(table, 80)


def test_in_a_pipe_a_line_stays_whole() -> None:
    line = "word " * 40
    assert drawn(FittedLine(line), 80, terminal=False).rstrip("\n") == line
    assert len(drawn(FittedLine(line), 80).splitlines()) == 3
