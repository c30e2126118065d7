"""CPU seconds of tests, by file: with `--cpu-times=FILE` each test adds a line to FILE, and so does the import of its
file; `python -m tests.support.cpu_time FILE` sums them up, with the most expensive tests of each
file. `--sample=N` runs N tests of each file only.

Counted are this process and those of its children that have ended and been waited for: a server that a fixture keeps
counts where it is ended.
"""

from __future__ import annotations

import json
import random
import resource
import sys
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option, of this plugin: `-p tests.support.cpu_time`."""
    parser.addoption("--cpu-times", metavar="FILE", help="add the CPU seconds of each test to FILE")
    parser.addoption("--sample", metavar="N", type=int, help="run N tests of each file, drawn by lot")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep a sample of each file, in order, of what marks and keywords have left."""
    if not (most := config.getoption("--sample")):
        return
    files: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[item.nodeid.partition("::")[0]].append(item)
    kept = {id(item) for own in files.values() for item in random.Random(0).sample(own, min(most, len(own)))}
    for name, own in files.items():
        _note(config, f"{name}::count", len(own))
    items[:] = [item for item in items if id(item) in kept]


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
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """The test alone, of which the rest is fixtures."""
    before = cpu_seconds()
    try:
        return (yield)
    finally:
        _note(item.config, f"{item.nodeid}::call", cpu_seconds() - before)


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
    """Files by their seconds, the most expensive first, each with its most expensive tests. Of a sample the seconds of
    all are guessed: fixtures as they are, calls as often as there are tests.
    """
    files: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    counts: dict[str, int] = {}
    calls: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        name, seconds = json.loads(line)
        path, _, test = name.partition("::")
        if test == "count":
            counts[path] = int(seconds)
        elif test.endswith("::call"):
            calls[path].append(seconds)
        else:
            files[path][test] += seconds
    wholes = {}
    for path, parts in files.items():
        own = sorted(calls[path]) or [0.0]
        usual = own[:-1] if len(own) > 2 else own  # the first of all often loads what all share
        more = counts.get(path, len(own)) - len(own)
        wholes[path] = sum(parts.values()) + more * sum(usual) / len(usual)
    rows = []
    for path, parts in sorted(files.items(), key=lambda file: -wholes[file[0]]):
        rows.append(f"{wholes[path]:8.1f} {path} ({counts.get(path, len(parts) - 1)})")
        most = sorted(parts.items(), key=lambda part: -part[1])[:tests]
        rows += [f"{seconds:16.2f} {test}" for test, seconds in most if seconds >= 0.3]
    return "\n".join([*rows, f"{sum(wholes.values()):8.1f} in all"])


if __name__ == "__main__":
    print(table(Path(sys.argv[1]).read_text(encoding="utf-8").splitlines(), int(sys.argv[2]) if sys.argv[2:] else 3))
