"""Bytecode of tests and sources, made once before several processes of tests begin.

Each process of `pytest -n` collects all tests, and all of them begin at once: in a fresh clone each rewrites the
asserts of 700 files, and compiles these, the sources and the packages that it imports, where one would do for all.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import py_compile
import subprocess
import sys
from collections.abc import Iterable
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.paths import ROOT

_LARGE = ("torch", "transformers", "hypothesis", "openai", "numpy")  # those with most files


def make_bytecode(config: pytest.Config) -> None:
    """Write what is missing, with all CPUs; nothing where Python is not to write bytecode. Of several runs that begin
    together one does, and the others wait for it.
    """
    if sys.dont_write_bytecode:
        return
    folder = os.open(ROOT / "tests", os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        _write_missing(config)
    finally:
        os.close(folder)


def _write_missing(config: pytest.Config) -> None:
    imports = "\n".join(f"import {name}" for name in _LARGE if not has_bytecode(name))
    packages = subprocess.Popen([sys.executable, "-c", imports], stderr=subprocess.DEVNULL)
    files = [path for folder in ("tests", "src") for path in sorted((ROOT / folder).rglob("*.py"))]
    processes = os.cpu_count() or 1
    workers = [
        get_context("fork").Process(target=_make, args=(config, files[first::processes])) for first in range(processes)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    packages.wait()


def has_bytecode(package: str) -> bool:
    """Whether a package was imported before, or is not there to be imported."""
    spec = importlib.util.find_spec(package)
    return spec is None or not spec.origin or Path(importlib.util.cache_from_source(spec.origin)).exists()


def _make(config: pytest.Config, files: Iterable[Path]) -> None:
    for path in files:
        if path.name.startswith("test_") or path.name == "conftest.py":
            rewrite(config, path)
        elif not Path(f"{path.parent}/__pycache__/{path.stem}.{sys.implementation.cache_tag}.pyc").exists():
            py_compile.compile(str(path))


def rewrite(config: pytest.Config, path: Path) -> Path | None:
    """Write the bytecode of a file of tests as pytest does when it imports it; None where that is there, or this
    version of pytest does it otherwise: then each process does it for itself.
    """
    try:
        from _pytest.assertion.rewrite import (
            PYC_TAIL,
            _read_pyc,
            _rewrite_test,
            _write_pyc,
            assertstate_key,
            get_cache_dir,
            try_makedirs,
        )

        folder = get_cache_dir(path)
        cached = folder / (path.name[:-3] + PYC_TAIL)
        if not try_makedirs(folder) or _read_pyc(path, cached) is not None:
            return None
        source, code = _rewrite_test(path, config)
        return cached if _write_pyc(config.stash[assertstate_key], code, source, cached) else None
    except (ImportError, AttributeError, TypeError, KeyError):
        return None
