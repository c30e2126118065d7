"""A release: its version is written once, and what it says to users is whole. docs/releasing.md has the steps."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import jinja2

import homenode
from tests.paths import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CHANGES = ROOT / "changes"
KINDS = {kind["directory"]: kind["name"] for kind in PROJECT["tool"]["towncrier"]["type"]}
FRAGMENTS = sorted(set(CHANGES.iterdir()) - {CHANGES / "README.md", CHANGES / "template.jinja"})
RELEASES = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)


def numbers(version: str) -> tuple[int, ...]:
    """`0.2.0.dev0` as (0, 2, 0)."""
    return tuple(int(part) for part in re.sub(r"\.dev\d+$", "", version).split("."))


def test_the_version_is_written_once() -> None:
    assert "version" not in PROJECT["project"]
    assert PROJECT["project"]["dynamic"] == ["version"]
    read_by = PROJECT["tool"]["scikit-build"]["metadata"]["version"]
    assert read_by["input"] == "src/homenode/__init__.py"
    source = (ROOT / read_by["input"]).read_text(encoding="utf-8")
    assert re.findall(r'(?m)^__version__ = "(.+)"$', source) == [homenode.__version__]


def test_the_version_is_a_release_or_on_the_way_to_one() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev0)?", homenode.__version__)


def test_the_changelog_has_each_release_once_newest_first() -> None:
    assert [numbers(release) for release in RELEASES] == sorted(
        {numbers(release) for release in RELEASES}, reverse=True
    )


def test_a_version_without_dev_can_be_tagged() -> None:
    if homenode.__version__.endswith(".dev0"):
        assert numbers(RELEASES[0]) < numbers(homenode.__version__)
    else:
        assert RELEASES[0] == homenode.__version__
        assert not FRAGMENTS, "`make release` puts them into CHANGELOG.md"


def test_each_change_is_of_a_kind_and_says_something() -> None:
    for path in FRAGMENTS:
        name = re.fullmatch(r"[a-z0-9-]+\.([a-z]+)\.md", path.name)
        assert name is not None and name[1] in KINDS, f"{path.name} is not NAME.KIND.md with a KIND of {sorted(KINDS)}"
        text = path.read_text(encoding="utf-8")
        assert re.search(r"\w+ \w+", text)
        assert not re.match(r"[-*#]", text), "no bullet and no heading: the template writes them"
        assert max(map(len, text.splitlines())) <= 120


def test_the_page_of_changes_names_every_kind() -> None:
    page = (CHANGES / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(\w+)`", page)) >= set(KINDS)


def test_the_template_writes_a_section_as_the_changelog_has_them() -> None:
    template = jinja2.Template(
        (ROOT / PROJECT["tool"]["towncrier"]["template"]).read_text(encoding="utf-8"), trim_blocks=True
    )
    definitions = {kind: {"name": name} for kind, name in KINDS.items()}
    long = "word " * 20 + "\n" + "word " * 20
    text = template.render(definitions=definitions, sections={"": {"fixed": {long: []}, "added": {"b": [], "c": []}}})
    head, _, last = text.strip().rpartition("### Fixed\n")
    assert head == "### Added\n- b\n- c\n\n"
    assert last == "- " + ("word " * 23).strip() + "\n  " + ("word " * 17).strip()
    assert PROJECT["tool"]["towncrier"]["start_string"] in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
