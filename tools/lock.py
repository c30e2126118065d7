"""`make lock`: the versions and hashes of what homenode needs to run (requirements-release.txt), to be a service that
tells routers and collectors what it does (requirements-service.txt), to be built (requirements-build.txt) and to be
developed (requirements-dev.txt), resolved for every system and every Python from 3.11 on. What it runs with has the
same versions in all of the files that hold it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCKS = {
    "requirements-release.txt": "run",
    "requirements-service.txt": "deploy",
    "requirements-build.txt": "build",
    "requirements-dev.txt": "develop",
}
SAME_AS = {"deploy": "requirements-release.txt", "develop": "requirements-service.txt"}  # in all that both hold
EXTRAS = ("events", "otel")  # that a service needs
GROUPS = ("check", "test", "docs", "release")  # torch is left out: which build of it there is depends on the machine


def requirements(purpose: str) -> list[str]:
    """The requirements that pyproject.toml has to `run`, `deploy`, `build` or `develop` homenode."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    if purpose == "build":
        return list(project["build-system"]["requires"])
    wanted = list(project["project"]["dependencies"])
    if purpose == "deploy":
        wanted += [package for extra in EXTRAS for package in project["project"]["optional-dependencies"][extra]]
    if purpose == "develop":
        wanted += [package for group in GROUPS for package in project["dependency-groups"][group]]
    return wanted


def main() -> None:
    """Write the files, those that run homenode first."""
    for name, purpose in LOCKS.items():
        command = ["uv", "pip", "compile", "--universal", "--python-version", "3.11", "--generate-hashes", "--quiet"]
        command += ["--upgrade", "--no-header", "--no-annotate", "--no-emit-index-url", "--no-strip-extras", "-"]
        if purpose in SAME_AS:
            command += ["--constraint", str(ROOT / SAME_AS[purpose])]
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
