"""`make lock`: the versions and hashes of what homenode needs to run (requirements-release.txt) and to be built
(requirements-build.txt), resolved for every system and every Python from 3.11 on."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCKS = {"requirements-release.txt": "run", "requirements-build.txt": "build"}


def requirements(purpose: str) -> list[str]:
    """What pyproject.toml asks for to `run` homenode, or to `build` it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return list(project["project"]["dependencies"] if purpose == "run" else project["build-system"]["requires"])


def main() -> None:
    """Write both files."""
    for name, purpose in LOCKS.items():
        command = ["uv", "pip", "compile", "--universal", "--python-version", "3.11", "--generate-hashes", "--quiet"]
        command += ["--upgrade", "--no-header", "--no-annotate", "--no-emit-index-url", "-"]
        program = Path(sys.executable).with_name("uv")
        ran = subprocess.run(
            [str(program), *command[1:]], input="\n".join(requirements(purpose)), capture_output=True, text=True
        )
        if ran.returncode:
            sys.exit(f"{name} could not be resolved: {ran.stderr.strip()}")
        head = f"# What is needed to {purpose} homenode, with hashes. Written by `make lock`; not to be edited.\n"
        (ROOT / name).write_text(head + ran.stdout, encoding="utf-8")
        print(f"{name}: {ran.stdout.count('==')} packages")


if __name__ == "__main__":
    main()
