"""The pages for people who serve: each is on the map, its links lead somewhere, and what it names is there.

The commands of the page of first steps are run as they stand, in tests/engine/test_docs_first_steps.py.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from homenode.cli.main import cli
from homenode.server.http.config import ServerConfig
from homenode.units import parse_bytes, parse_seconds
from tests.paths import ROOT

DOCS = ROOT / "docs"
GUIDES = ("first-steps", "memory", "config-file", "reverse-proxy", "troubleshooting")
EXAMPLE = DOCS / "examples" / "serve.toml"
_BLOCK = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]")


def text_of(page: str) -> str:
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


def commands(group: click.Group = cli, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*words, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))


COMMANDS = dict(commands())
ALL_FLAGS = {flag for command in COMMANDS.values() for p in command.params for flag in (*p.opts, *p.secondary_opts)}
ALL_FLAGS |= {"--help", "--version"}


def lines_of(page: str) -> list[str]:
    """Command lines of homenode: in blocks, without the prompt and comments, and in the text."""
    text = text_of(page)
    found = re.findall(r"`(homenode [^`\n]+)`", _BLOCK.sub("", text))
    for _, block in _BLOCK.findall(text):
        joined = block.replace("\\\n", " ")
        found += [line.removeprefix("$ ") for line in joined.splitlines()]
    return [line for line in found if re.match(r"(?:echo [^|]*\| )?homenode ", line)]


def words_of(line: str) -> list[str]:
    """What comes after `homenode`, of a line that may have something before a pipe and a comment behind."""
    words = shlex.split(line.rpartition(" | ")[2], comments=True)
    assert words[0] == "homenode"
    return words[1:]


@pytest.mark.parametrize("page", GUIDES)
def test_commands_and_their_flags_exist(page: str) -> None:
    lines = lines_of(page)
    assert lines or page == "reverse-proxy"
    for line in lines:
        words = words_of(line)
        if words[0].startswith("--"):
            assert words[0] in ALL_FLAGS
            continue
        command = COMMANDS.get(tuple(words[:2])) or COMMANDS.get(tuple(words[:1]))
        assert command is not None, line
        known = {flag for p in command.params for flag in (*p.opts, *p.secondary_opts)}
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert given <= known | {"--help"}, line


@pytest.mark.parametrize("page", GUIDES)
def test_flags_in_the_text_exist(page: str) -> None:
    text = _BLOCK.sub("", text_of(page))
    named = {flag for code in re.findall(r"`([^`\n]+)`", text) for flag in _FLAG.findall(code)}
    assert named <= ALL_FLAGS
    assert named or page == "config-file"


def test_the_map_leads_to_every_page() -> None:
    index = text_of("index")
    pages = {str(path.relative_to(DOCS)) for path in (*DOCS.glob("*.md"), *DOCS.glob("*/index.md"))} - {"index.md"}
    head, _, tree = index.partition("```{toctree}")
    assert pages == set(_LINK.findall(head))
    assert pages == {f"{line}.md" for line in tree.splitlines() if re.fullmatch(r"[a-z/-]+", line)}


@pytest.mark.parametrize("folder", sorted(path.parent for path in DOCS.glob("*/index.md")), ids=lambda path: path.name)
def test_the_page_of_a_folder_leads_to_all_of_its_pages(folder: Path) -> None:
    head, _, tree = (folder / "index.md").read_text(encoding="utf-8").partition("```{toctree}")
    pages = {path.name for path in folder.glob("*.md")} - {"index.md"}
    assert pages == {f"{line}.md" for line in tree.splitlines() if re.fullmatch(r"[a-z0-9-]+", line)}
    if ":hidden:" in tree:
        assert pages <= {link.partition("#")[0] for link in _LINK.findall(head)}


def test_a_decision_has_a_question_a_reason_and_a_price_on_one_page() -> None:
    pages = {path.stem: path.read_text(encoding="utf-8") for path in (DOCS / "decisions").glob("*.md")}
    headings = ["Question", "Decision", "Why", "What it costs", "When to look again"]
    assert len(pages) > 10
    for name, text in pages.items():
        if name != "index":
            assert re.findall(r"^## (.+)$", text, re.MULTILINE) == headings, name
            assert len(text.splitlines()) <= 40, f"docs/decisions/{name}.md is longer than a page of 40 lines"
            assert all(len(part.split()) > 10 for part in re.split(r"^## .+$", text, flags=re.MULTILINE)[1:]), name


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda path: str(path.relative_to(DOCS)))
def test_links_within_the_pages_lead_somewhere(path: Path) -> None:
    for link in _LINK.findall(_BLOCK.sub("", path.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {_anchor(heading) for heading in headings}, link


def _anchor(heading: str) -> str:
    """As GitHub and myst make it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_messages_that_troubleshooting_explains_are_messages_of_ours() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "src" / "homenode").rglob("*.py")))
    source = re.sub(r'"\s*\n\s*f?"', "", source)  # texts over several lines
    rows = re.search(r"## It does not start\n(.*?)\n## ", text_of("troubleshooting"), re.DOTALL)
    assert rows is not None
    messages = re.findall(r"^\| `([^`]+)` \|", rows[1], re.MULTILINE)
    assert len(messages) > 5
    for message in messages:
        message = re.sub(r"127\.0\.0\.1|8000|: Address already in use", "...", message)
        for part in message.split("..."):
            assert part.strip() in source, message


def test_the_example_is_taken_by_serve_and_its_page_shows_it() -> None:
    result = CliRunner().invoke(cli, ["serve", "--config", str(EXAMPLE), "--check-config", "--port", "0"])
    assert result.exit_code == 0, result.output
    shown = CliRunner(env={"COLUMNS": "300"}).invoke(cli, ["serve", "--config", str(EXAMPLE), "--show-config"]).output
    for key in tomllib.loads(EXAMPLE.read_text(encoding="utf-8")):
        assert re.search(rf"--{key}\b.*config file", shown), key
    assert "examples/serve.toml" in text_of("config-file")


def test_a_misspelt_key_of_the_example_is_refused_by_its_name(tmp_path: Path) -> None:
    wrong = tmp_path / "serve.toml"
    wrong.write_text(EXAMPLE.read_text(encoding="utf-8").replace("max-num-seqs", "max-num-seq"))
    result = CliRunner().invoke(cli, ["serve", "--config", str(wrong), "--check-config"])
    assert result.exit_code == 2
    assert "max-num-seq" in result.stderr


def test_limits_of_the_reverse_proxies_go_with_the_defaults() -> None:
    page, server = text_of("reverse-proxy"), ServerConfig()
    blocks = dict(_BLOCK.findall(page))
    nginx, caddy = blocks["nginx"], blocks["caddy"]
    assert nginx.count("{") == nginx.count("}")
    assert caddy.count("{") == caddy.count("}")
    body = re.search(r"client_max_body_size (\d+)m;", nginx)
    assert body is not None
    assert parse_bytes(f"{body[1]}MiB") == server.max_request_body
    for rests in (re.search(r"keepalive_timeout (\d+s);", nginx), re.search(r"keepalive (\d+s)", caddy)):
        assert rests is not None
        assert parse_seconds(rests[1]) < server.keep_alive_timeout
    assert f"silent for {server.sse_keep_alive:g} s (`--sse-keep-alive`)" in page
    assert f"after {server.keep_alive_timeout:g} s of rest" in page
    assert f":{server.port}" in nginx
    assert f":{server.port}" in caddy


def test_bytes_of_a_token_are_as_the_formula_says() -> None:
    rows = re.findall(
        r"^\| \S.*? \| (\d+), (\d+), (\d+) \| (\d+) KiB \| ([\d.]+) (MiB|GiB) \|", text_of("memory"), re.M
    )
    assert len(rows) == 3
    for layers, heads, size, token, long, unit in rows:
        each = 2 * int(layers) * int(heads) * int(size) * 2
        assert each == int(token) * 1024
        assert round(each * 8192 / parse_bytes(f"1{unit}"), 1) == float(long)
