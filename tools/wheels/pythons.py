"""The Pythons of this machine that can build wheels: with headers and with venv."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.wheels.targets import PythonTarget, WheelError

_ASK = """
import json, pathlib, sys, sysconfig, venv, ensurepip
assert sys.implementation.name == "cpython"
paths = sysconfig.get_paths()
print(json.dumps([sys.version_info[:3], paths["include"], sysconfig.get_config_h_filename(),
                  (pathlib.Path(paths["include"]) / "Python.h").is_file()
                  and not sysconfig.get_config_var("Py_GIL_DISABLED")]))
"""
_NEWEST = 20  # 3.N is looked for up to this N


@dataclass(frozen=True)
class Python:
    """An interpreter. `headers`: the folder with Python.h; `config`: the file pyconfig.h that belongs to them."""

    path: Path
    version: tuple[int, int, int]
    headers: Path
    config: Path


def read_python(path: str | Path) -> Python | None:
    """What this interpreter says of itself; None where it does not run, is not CPython, or has no headers
    or no venv.
    """
    try:
        asked = subprocess.run([path, "-I", "-c", _ASK], capture_output=True, text=True, timeout=20)
        version, headers, config, complete = json.loads(asked.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    major, minor, patch = version
    return Python(Path(path), (major, minor, patch), Path(headers), Path(config)) if complete else None


def find_pythons(named: Iterable[str | Path]) -> Sequence[Python]:
    """The interpreters that somebody named (WheelError for one that cannot build), or else all that are found: this
    one, those on the path and those of pyenv.
    """
    found = []
    for path in named:
        python = read_python(path)
        if python is None:
            raise WheelError(
                f"--python {path} cannot build a wheel: it does not run, is not CPython, or lacks its headers or venv"
            )
        found.append(python)
    every = (read_python(path) for path in _candidates())
    return found or [python for python in every if python and python.version >= (3, 11)]


def choose(target: PythonTarget, pythons: Sequence[Python]) -> Python:
    """The oldest of the interpreters that can build for the target. WheelError where none can."""
    able = [python for python in pythons if target.built_by(python.version[:2])]
    if not able:
        seen = ", ".join(".".join(map(str, python.version)) for python in pythons) or "none"
        raise WheelError(
            f"no Python here can build the wheel for {target.words}: install one, with its headers "
            f"(python3-dev) and venv, or name it with "
            f"--python; seen: {seen}"
        )
    return min(able, key=lambda python: python.version)


def _candidates() -> list[str]:
    names = [shutil.which(f"python3.{minor}") for minor in range(11, _NEWEST)]
    pyenv = sorted((Path.home() / ".pyenv/versions").glob("3.*/bin/python3"))
    every = [getattr(sys, "_base_executable", sys.executable), *filter(None, names), *map(str, pyenv)]
    return list(dict.fromkeys(every))
