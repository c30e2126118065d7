"""The recipe of a release (`make release`), followed in a clone of this repository."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.paths import ROOT
from tools.release import RefusedError, next_version, numbers, refusal, release

NEXT = "99.1.0"
CLEAN = {"current": "0.2.0.dev0", "released": ["0.1.0"], "tags": ["v0.1.0"], "changes": ["a.fixed.md"], "dirty": ""}


@pytest.mark.parametrize(
    ("version", "with_", "words"),
    [
        ("0.2.0", {}, ""),
        ("0.1.1", {}, ""),  # a correction of what was released last
        ("1.0.0", {}, ""),
        ("0.1.0", {}, "not behind the last release, 0.1.0"),
        ("0.2.0.dev0", {}, "not behind the last release"),
        ("0.2.0", {"current": "0.3.0.dev0"}, "is before 0.3.0.dev0"),
        ("0.2.0", {"tags": ["v0.2.0"]}, "the tag v0.2.0 is there already"),
        ("0.2.0", {"dirty": " M README.md"}, "changes that are in no commit"),
        ("0.2.0", {"changes": []}, "nothing to say to users"),
    ],
)
def test_what_cannot_be_released_is_refused_by_name(version: str, with_: dict[str, object], words: str) -> None:
    said = refusal(version, **{**CLEAN, **with_})  # type: ignore[arg-type]
    assert words in said and bool(words) == bool(said)


@pytest.mark.parametrize("wrong", ["", "0.2", "v0.2.0", "0.2.0rc1", "latest"])
def test_a_version_is_three_numbers(wrong: str) -> None:
    with pytest.raises(RefusedError, match="make release VERSION="):
        numbers(wrong)


def git(clone: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=clone, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with what a release reads and writes of this one, as it stands here, in one commit."""
    for name, value in (("NAME", "Releaser"), ("EMAIL", "releaser@example.org")):
        monkeypatch.setenv(f"GIT_AUTHOR_{name}", value)
        monkeypatch.setenv(f"GIT_COMMITTER_{name}", value)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    for name in ("CHANGELOG.md", "pyproject.toml", "src/homenode/__init__.py"):
        (origin / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, origin / name)
    shutil.copytree(ROOT / "changes", origin / "changes")
    (origin / "changes" / "planted.fixed.md").write_text("A fault that was planted is mended.\n", encoding="utf-8")
    git(origin, "init", "--quiet", "--initial-branch", "main")
    git(origin, "add", "--all")
    git(origin, "commit", "--quiet", "--message", "all: begin")
    git(tmp_path, "clone", "--quiet", str(origin), str(clone))
    return clone


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
@pytest.mark.skipif(importlib.util.find_spec("towncrier") is None, reason="no towncrier, which `make test` installs")
def test_a_clone_is_released_as_a_tagged_commit_and_the_next_version_begins(clone: Path) -> None:
    release(clone, NEXT)
    assert git(clone, "cat-file", "-t", f"v{NEXT}") == "tag"  # annotated
    assert git(clone, "tag", "--list", "--format=%(contents:subject)", f"v{NEXT}") == f"homenode {NEXT}"
    subjects = git(clone, "log", "--format=%s").splitlines()
    assert subjects == [f"release: begin {next_version(NEXT)}", f"release: {NEXT}", "all: begin"]
    assert git(clone, "rev-parse", f"v{NEXT}^{{commit}}") == git(clone, "rev-parse", "HEAD~1")

    assert f'__version__ = "{NEXT}"' in git(clone, "show", f"v{NEXT}:src/homenode/__init__.py")
    left = git(clone, "ls-tree", "--name-only", f"v{NEXT}:changes").split()
    assert set(left) == {"README.md", "template.jinja"}
    _, _, section = git(clone, "show", f"v{NEXT}:CHANGELOG.md").partition(f"\n## {NEXT}\n")
    assert "- A fault that was planted is mended." in section.partition("\n## ")[0]

    assert f'__version__ = "{next_version(NEXT)}"' in (clone / "src/homenode/__init__.py").read_text(encoding="utf-8")
    assert git(clone, "status", "--porcelain") == ""
    assert git(clone, "diff", "--name-only", "HEAD~1").split() == ["src/homenode/__init__.py"]
    with pytest.raises(RefusedError, match=f"not behind the last release, {NEXT}"):
        release(clone, NEXT)
    with pytest.raises(RefusedError, match="nothing to say to users"):
        release(clone, "99.2.0")


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_a_clone_that_is_refused_is_left_as_it_was(clone: Path) -> None:
    (clone / "CHANGELOG.md").write_text((clone / "CHANGELOG.md").read_text(encoding="utf-8") + "x", encoding="utf-8")
    before = git(clone, "status", "--porcelain")
    with pytest.raises(RefusedError, match="in no commit"):
        release(clone, NEXT)
    assert git(clone, "status", "--porcelain") == before and git(clone, "tag", "--list") == ""
