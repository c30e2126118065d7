"""The files that code hosts, editors and git hooks read: each is well formed, and what it names is there."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from homenode.cli.main import cli
from tests.paths import ROOT
from tools.cpp_style import changed_lines, find_program, format_lines, without_precompiled

TEMPLATES = ROOT / ".github/ISSUE_TEMPLATE"
FORMS = ("bug.yml", "feature.yml")


def loaded(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_the_hosted_run_is_that_of_the_repository_over_all_pythons_and_both_compilers() -> None:
    workflow = loaded(".github/workflows/ci.yml")
    assert set(workflow[True]) == {"push", "pull_request"}  # YAML 1.1 reads the key `on` so
    job = workflow["jobs"]["run"]
    matrix = job["strategy"]["matrix"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    oldest = int(re.sub(r"\D+3\.", "", project["project"]["requires-python"]))
    assert matrix["python"] == [f"3.{minor}" for minor in range(oldest, 15)]
    assert [each["cxx"] for each in matrix["compiler"]] == ["g++", "clang++"]
    commands = commands_of(job)
    assert commands == [".ci/run"]
    assert (ROOT / commands[0]).stat().st_mode & 0o111
    assert workflow["permissions"] == {"contents": "read"}
    for name in re.findall(r"\$\{\{ matrix\.([\w.]+) \}\}", (ROOT / ".github/workflows/ci.yml").read_text()):
        first, *rest = name.split(".")
        assert first in matrix and all(word in matrix[first][0] for word in rest), name


def commands_of(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def test_the_hosted_run_has_arm_sanitizers_and_the_packages_of_a_tag_by_commands_that_there_are() -> None:
    workflow = loaded(".github/workflows/ci.yml")
    jobs = workflow["jobs"]
    assert set(jobs) == {"run", "aarch64", "sanitizers", "coverage", "wheels"}
    assert workflow[True]["push"] == {"branches": ["main"], "tags": ["v*"]}
    assert jobs["aarch64"]["runs-on"].endswith("-arm") and commands_of(jobs["aarch64"]) == [".ci/run"]
    assert commands_of(jobs["sanitizers"]) == ["make sanitize levels"]
    assert commands_of(jobs["coverage"]) == ["make coverage"]
    assert commands_of(jobs["wheels"])[0] == "make wheels"
    assert jobs["wheels"]["steps"][-1]["with"]["path"] == "dist/"
    targets = set(re.findall(r"(?m)^([a-z-]+|\$\(VENV\)/\w+):", (ROOT / "Makefile").read_text(encoding="utf-8")))
    for job in jobs.values():
        assert job["timeout-minutes"] <= 120, "a run that hangs must end"
        for command in commands_of(job):
            for words in re.findall(r"make ([^&]+)", command):
                assert {word.replace(".venv", "$(VENV)") for word in words.split()} <= targets, command
            for folder in re.findall(r"pytest (\S+)", command):
                assert (ROOT / folder).is_dir()


@pytest.mark.parametrize("form", FORMS)
def test_a_form_for_reports_is_one_that_code_hosts_take(form: str) -> None:
    page = loaded(str((TEMPLATES / form).relative_to(ROOT)))
    assert {"name", "description", "body"} <= set(page)
    ids = [part["id"] for part in page["body"] if part["type"] != "markdown"]
    assert len(ids) == len(set(ids))
    for part in page["body"]:
        assert part["type"] in {"markdown", "textarea", "input", "dropdown", "checkboxes"}
        assert part["attributes"].get("label") or part["attributes"].get("value")
        assert part["type"] != "dropdown" or part["attributes"]["options"]


def test_a_report_asks_for_the_version_and_the_machine_by_commands_that_there_are() -> None:
    bug = loaded(".github/ISSUE_TEMPLATE/bug.yml")
    wanted = {part["id"] for part in bug["body"] if part.get("validations", {}).get("required")}
    assert {"what", "version", "host"} <= wanted
    text = (TEMPLATES / "bug.yml").read_text(encoding="utf-8")
    assert {"homenode --version", "homenode host record machine.json"} <= set(re.findall(r"`([^`]+)`", text))
    context = click.Context(cli)
    for words in re.findall(r"`homenode ((?:[a-z]+ ?)+)", text):
        command: click.Command | None = cli
        for word in words.split():
            if not isinstance(command, click.Group):
                break
            command = command.get_command(context, word)
            assert command is not None, words


def test_every_hook_is_local_and_part_of_make_check() -> None:
    repos = loaded(".pre-commit-config.yaml")["repos"]
    assert [repo["repo"] for repo in repos] == ["local"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for hook in repos[0]["hooks"]:
        assert hook["language"] == "system"
        words = [word for word in hook["entry"].split() if not word.startswith("--")]
        assert words[0].startswith(".venv/bin/")
        assert " ".join(words).replace(".venv/bin", "$(BIN)") in makefile


def test_editors_are_told_the_widths_that_are_checked() -> None:
    parser = configparser.ConfigParser()
    parser.read_string("[top]\n" + (ROOT / ".editorconfig").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    widths = {parser[section]["max_line_length"] for section in parser if "max_line_length" in parser[section]}
    assert widths == {str(project["tool"]["ruff"]["line-length"])}
    assert parser["*"]["indent_style"] == "space" and parser["Makefile"]["indent_style"] == "tab"
    assert yaml.safe_load((ROOT / ".clang-format").read_text())["ColumnLimit"] == project["tool"]["ruff"]["line-length"]


def test_lines_that_changed_are_read_from_a_diff() -> None:
    diff = """diff --git a/csrc/a.cpp b/csrc/a.cpp
--- a/csrc/a.cpp
+++ b/csrc/a.cpp
@@ -1 +1,2 @@
-x
+y
+z
@@ -9,2 +11,0 @@ int f() {
-gone
-gone
@@ -20,0 +20 @@ int f() {
+new
--- a/csrc/notes.md
+++ b/csrc/notes.md
@@ -1 +1 @@
-a
+b
"""
    assert changed_lines(diff) == {"csrc/a.cpp": [(1, 2), (20, 20)]}


def test_only_changed_lines_are_put_into_style(tmp_path: Path) -> None:
    program = find_program("clang-format")
    if program is None:
        pytest.skip("needs clang-format, which `make check` installs")
    (tmp_path / ".clang-format").write_text((ROOT / ".clang-format").read_text(encoding="utf-8"))
    source = tmp_path / "a.cpp"
    source.write_text("int  old(  ) { return 1; }\n\n\nint  changed(  ) { return 2; }\n")
    lines = {"a.cpp": [(4, 4)]}
    assert format_lines(program, tmp_path, lines, fix=False) == ["a.cpp"]
    assert "int  changed(  )" in source.read_text()
    assert format_lines(program, tmp_path, lines, fix=True) == ["a.cpp"]
    assert source.read_text() == "int  old(  ) { return 1; }\n\nint changed() { return 2; }\n"
    assert format_lines(program, tmp_path, {"a.cpp": [(3, 3)]}, fix=False) == []


@pytest.mark.parametrize(
    "given",
    [
        "-Winvalid-pch -include /b/CMakeFiles/core.dir/cmake_pch.hxx ",
        "-Winvalid-pch -Xclang -include-pch -Xclang /b/cmake_pch.hxx.pch -Xclang -include -Xclang /b/cmake_pch.hxx ",
    ],
)
def test_what_is_looked_through_has_no_precompiled_headers(given: str) -> None:
    """Those of another compiler cannot be read."""
    command = "c++ -I csrc -include own.h {}-O2 -c csrc/kv/cache.cpp"
    built = json.dumps([{"directory": "/b", "command": command.format(given), "file": "csrc/kv/cache.cpp"}])
    (entry,) = json.loads(without_precompiled(built))
    assert entry["command"] == command.format("")


def test_the_style_of_cpp_is_valid() -> None:
    program = find_program("clang-format")
    if program is None:
        pytest.skip("needs clang-format, which `make check` installs")
    shown = subprocess.run([program, "--dump-config", "--style=file"], cwd=ROOT, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    effective = yaml.safe_load(shown.stdout)
    for name, value in yaml.safe_load((ROOT / ".clang-format").read_text(encoding="utf-8")).items():
        assert name == "BasedOnStyle" or isinstance(value, dict) or str(effective[name]) == str(value), name


def test_tests_skip_for_want_of_the_native_core_alone() -> None:
    """Any other module of this project is there, or has moved: then its tests are not to be skipped without a word."""
    skipping = re.compile(r'importorskip\(\s*"(homenode[\w.]*)"')
    compiled = {"homenode._native", "homenode.compute.native"}
    found = {
        (str(path.relative_to(ROOT)), name)
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for name in skipping.findall(path.read_text(encoding="utf-8"))
        if name not in compiled
    }
    assert not found
