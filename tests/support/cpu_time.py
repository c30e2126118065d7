"""CPU seconds of tests, by file: with `--cpu-times=FILE` each test adds a line to FILE, and so does the import of its
file; `python -m tests.support.cpu_time FILE` sums them up, with the most expensive tests of each file.

Counted are this process and those of its children that have ended and been waited for: a server that a fixture keeps
counts where it is ended.
"""

from __future__ import annotations

import json
import resource
import sys
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option, of this plugin: `-p tests.support.cpu_time`."""
    parser.addoption("--cpu-times", metavar="FILE", help="add the CPU seconds of each test to FILE")


def cpu_seconds() -> float:
    """CPU time of this process, and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _note(config: pytest.Config, name: str, seconds: float) -> None:
    if path := config.getoption("--cpu-times"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps([name, round(seconds, 4)]) + "\n")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test with what its fixtures begin and end."""
    before = cpu_seconds()
    try:
        return (yield)
    finally:
        _note(item.config, item.nodeid, cpu_seconds() - before)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, object, object]:
    """The import of a file of tests, and the making of its parameters."""
    before = cpu_seconds()
    try:
        return (yield)
    finally:
        if isinstance(collector, pytest.Module):
            _note(collector.config, f"{collector.nodeid}::import", cpu_seconds() - before)


def table(lines: list[str], tests: int = 3) -> str:
    """Files by their seconds, the most expensive first, each with its most expensive tests."""
    files: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for line in lines:
        name, seconds = json.loads(line)
        path, _, test = name.partition("::")
        files[path][test] += seconds
    rows = []
    for path, parts in sorted(files.items(), key=lambda file: -sum(file[1].values())):
        rows.append(f"{sum(parts.values()):8.1f} {path} ({len(parts) - 1})")
        most = sorted(parts.items(), key=lambda part: -part[1])[:tests]
        rows += [f"{seconds:16.2f} {test}" for test, seconds in most if seconds >= 0.3]
    whole = sum(sum(parts.values()) for parts in files.values())
    return "\n".join([*rows, f"{whole:8.1f} in all"])


if __name__ == "__main__":
    print(table(Path(sys.argv[1]).read_text(encoding="utf-8").splitlines(), int(sys.argv[2]) if sys.argv[2:] else 3))
