"""`make release VERSION=0.2.0`: the release of a clone, as two commits and a tag. Nothing leaves the clone.

The commit `release: 0.2.0` has the version and its section of CHANGELOG.md, made of the files of changes/, and the
annotated tag v0.2.0; the commit behind it begins the next version, 0.3.0.dev0. docs/releasing.md has the steps before
and after.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSION_FILE = "src/homenode/__init__.py"
_VERSION = re.compile(r'(?m)^__version__ = "(.+)"$')


class RefusedError(Exception):
    """A reason why there can be no release now, as a sentence that says what to do."""


def numbers(version: str) -> tuple[int, int, int]:
    """The three numbers of a version, without its `.dev0`."""
    found = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)(?:\.dev0)?", version)
    if found is None:
        raise RefusedError(f"{version!r} is no version of three numbers; say, for example: make release VERSION=0.2.0")
    return int(found[1]), int(found[2]), int(found[3])


def next_version(version: str) -> str:
    """The version that development goes on with: of 0.2.0 and of 0.2.1 it is 0.3.0.dev0."""
    first, second, _ = numbers(version)
    return f"{first}.{second + 1}.0.dev0"


def refusal(version: str, current: str, released: list[str], tags: list[str], changes: list[str], dirty: str) -> str:
    """Why a clone cannot be released as `version`, or "". `changes`: names of fragments; `dirty`: git's status."""
    newest = max(released, key=numbers, default="0.0.0")
    if version.endswith(".dev0") or numbers(version) <= numbers(newest):
        return f"{version} is not behind the last release, {newest}; give the next one"
    if numbers(version) < numbers(current) and current.endswith(".dev0") and numbers(version)[:2] > numbers(newest)[:2]:
        return f"{version} is before {current}, which {VERSION_FILE} says is next; give that one or a later one"
    if f"v{version}" in tags:
        return f"the tag v{version} is there already; give the next version, or remove the tag: git tag -d v{version}"
    if dirty:
        return f"the clone has changes that are in no commit; commit or stash them first:\n{dirty}"
    if not changes:
        return "changes/ has no file, so there is nothing to say to users; changes/README.md says how to write one"
    return ""


def git(root: Path, *words: str) -> str:
    """The output of a git command in the clone."""
    ran = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True)
    if ran.returncode:
        raise RefusedError(f"git {words[0]} failed: {ran.stderr.strip() or ran.stdout.strip()}")
    return ran.stdout.strip()


def write_version(root: Path, version: str) -> None:
    """Write the version into the one file that has it."""
    file = root / VERSION_FILE
    text, count = _VERSION.subn(f'__version__ = "{version}"', file.read_text(encoding="utf-8"))
    if count != 1:
        raise RefusedError(f"{VERSION_FILE} has {count} lines `__version__ = ...`; it must have one")
    file.write_text(text, encoding="utf-8")


def release(root: Path, version: str) -> None:
    """Make the commits and the tag. Raises RefusedError, before anything is changed where the clone is not ready."""
    found = _VERSION.search((root / VERSION_FILE).read_text(encoding="utf-8"))
    released = re.findall(r"(?m)^## (\d\S*)$", (root / "CHANGELOG.md").read_text(encoding="utf-8"))
    changes = [path.name for path in (root / "changes").glob("*.*.md")]
    tags, dirty = git(root, "tag", "--list").split(), git(root, "status", "--porcelain")
    if reason := refusal(version, found[1] if found else "", released, tags, changes, dirty):
        raise RefusedError(reason)
    write_version(root, version)
    command = [sys.executable, "-m", "towncrier", "build", "--yes", "--version", version]
    ran = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if ran.returncode:
        raise RefusedError(f"towncrier wrote no section: {ran.stderr.strip()}; put the clone back: git reset --hard")
    git(root, "add", "--all")
    git(root, "commit", "--message", f"release: {version}")
    git(root, "tag", "--annotate", f"v{version}", "--message", f"homenode {version}")
    write_version(root, next_version(version))
    git(root, "commit", "--all", "--message", f"release: begin {next_version(version)}")


def main(words: list[str]) -> int:
    """Release the clone that this file is in. Exit code 2 where it cannot be."""
    try:
        numbers(version := words[0] if words else "")
        release(ROOT, version)
    except RefusedError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"tagged v{version}. To publish it: git push --follow-tags; to take it back: git reset --hard v{version}~1")
    print(f"and git tag -d v{version}. Its packages: git checkout v{version} && make wheels")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
