"""The lists of versions that a release is installed and built with: complete, and each package with its hashes."""

from __future__ import annotations

import re

import pytest

from tools.lock import LOCKS, ROOT, SAME_AS, requirements


def _pinned(text: str) -> dict[str, list[str]]:
    """Names of packages -> the lines that belong to them."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if pinned := re.match(r"([A-Za-z0-9._-]+)(?:\[[a-z,]+\])?==\S+", line):
            lines = found.setdefault(_normal(pinned[1]), [])
        elif line.startswith(" "):
            lines.append(line)
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize(("file", "purpose"), LOCKS.items())
def test_every_dependency_is_locked_with_hashes(file: str, purpose: str) -> None:
    pinned = _pinned((ROOT / file).read_text(encoding="utf-8"))
    wanted = {_normal(re.match(r"[A-Za-z0-9._-]+", requirement)[0]) for requirement in requirements(purpose)}  # type: ignore[index]
    assert wanted <= set(pinned), f"run `make lock`: {wanted - set(pinned)} are missing"
    for package, lines in pinned.items():
        assert lines and all(re.fullmatch(r" +--hash=sha256:[0-9a-f]{64}( \\)?", line) for line in lines), package


@pytest.mark.parametrize("file", LOCKS)
def test_no_lock_names_where_packages_come_from(file: str) -> None:
    assert "://" not in (ROOT / file).read_text(encoding="utf-8")


def _pins(file: str) -> set[str]:
    found = re.findall(r"(?m)^[^ #\n]+==\S+", (ROOT / file).read_text(encoding="utf-8"))
    return {re.sub(r"\[.*\]", "", pin) for pin in found}


@pytest.mark.parametrize("purpose", SAME_AS)
def test_tests_run_with_what_a_service_and_a_release_run_with(purpose: str) -> None:
    (file,) = (name for name, meant in LOCKS.items() if meant == purpose)
    assert _pins(SAME_AS[purpose]) and _pins(SAME_AS[purpose]) <= _pins(file)
