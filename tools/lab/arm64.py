"""What an arm64 guest runs: Debian's Python, the Python packages that homenode and its tests need, and the core
compiled for Arm here.

The core is compiled with a cross compiler from csrc/ of the tree, so the kernels under test are the tree's. Nothing of
arm64 is run to make it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tools.lab.debian import Packages, run
from tools.lab.folder import ROOT, LabError, LabFolder

SITE = "opt/site"  # in the root folder: packages from the Python index
_TESTS = ["pytest>=8.3", "pytest-timeout>=2.3"]
_BUILD_S = 1800.0
_PLATFORMS = (*(f"manylinux{version}_aarch64" for version in ("2014", "_2_17", "_2_28", "_2_31")), "any")


def prepare_root(folder: LabFolder) -> None:
    """The root folder, once; then the packages, anew when the project's list of them changes."""
    if not folder.arm_root.exists():
        Packages("arm64", folder.downloads).root(folder.arm_root)
    wanted = [*tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"], *_TESTS]
    site, mark = folder.arm_root / SITE, folder.arm_root / "opt" / "site.list"
    if mark.exists() and mark.read_text().split("\n") == wanted:
        return
    shutil.rmtree(site, ignore_errors=True)
    platforms = [word for platform in _PLATFORMS for word in ("--platform", platform)]
    version = ["--implementation", "cp", "--python-version", python_of(folder)]
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--target",
        site,
        "--only-binary=:all:",
    ]
    run([*pip, *platforms, *version, *wanted])
    mark.write_text("\n".join(wanted))


def prepare_package(folder: LabFolder) -> None:
    """The compiled core, again whenever a source of it has changed."""
    mark, module = folder.arm_package / "sources", folder.arm_package / "_native.so"
    now = _digest()
    if module.exists() and mark.exists() and mark.read_text() == now:
        return
    include = folder.path / "arm64-headers"
    if not include.exists():
        Packages("arm64", folder.downloads).headers(python_of(folder), include)
    built = _compile(folder, include / "usr" / "include")
    folder.arm_package.mkdir(exist_ok=True)
    shutil.copyfile(built, module)
    mark.write_text(now)


def python_of(folder: LabFolder) -> str:
    """The version of the guest's Python, as `3.11`."""
    found = sorted(
        file.name for file in (folder.arm_root / "usr" / "bin").glob("python3.[0-9]*") if file.name.count(".") == 1
    )
    if not found:
        raise LabError(f"{folder.arm_root} holds no Python; delete the folder and prepare again")
    return found[-1].removeprefix("python")


def _compile(folder: LabFolder, include: Path) -> Path:
    """cmake and ninja of this Python's environment where they are there, else those on PATH."""
    tools = Path(sys.executable).parent
    path = f"{tools}{os.pathsep}{os.environ.get('PATH', '')}"
    cmake, ninja = shutil.which("cmake", path=path), shutil.which("ninja", path=path)
    if cmake is None or ninja is None:
        raise LabError("cmake and ninja are needed to compile the core for Arm; `make lab` installs them into .venv")
    binding = folder.path / "build-tools"
    if not binding.exists():
        wanted = [
            word
            for word in tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
            if "nanobind" in word
        ]
        run(
            [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--target",
                binding,
                *wanted,
            ]
        )
    build = folder.path / "arm64-build"
    _forget_moved(build)
    headers = include / f"python{python_of(folder)}"
    settings = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        "CMAKE_CXX_COMPILER": "aarch64-linux-gnu-g++",
        "CMAKE_CXX_FLAGS": f"-isystem {include}",
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_MAKE_PROGRAM": ninja,
        "Python_EXECUTABLE": sys.executable,
        "Python_INCLUDE_DIR": headers,
    }
    run(
        [cmake, "-S", ROOT, "-B", build, "-G", "Ninja", *(f"-D{name}={value}" for name, value in settings.items())],
        {"PYTHONPATH": str(binding)},
    )
    done = subprocess.run(
        [ninja, "-C", build, "_native"], capture_output=True, text=True, timeout=_BUILD_S, check=False
    )
    if done.returncode:
        raise LabError(f"the core does not compile for Arm:\n{done.stdout[-3000:]}")
    (built,) = build.glob("_native*.so")
    return built


def _forget_moved(build: Path) -> None:
    """cmake refuses a folder that it configured in another place, such as that of a clone that was copied."""
    cache = build / "CMakeCache.txt"
    if cache.exists() and f"CMAKE_CACHEFILE_DIR:INTERNAL={build.resolve()}\n" not in cache.read_text(encoding="utf-8"):
        shutil.rmtree(build)


def _sources() -> Iterator[Path]:
    yield ROOT / "CMakeLists.txt"
    yield from sorted(file for file in (ROOT / "csrc").rglob("*") if file.is_file())


def _digest() -> str:
    found = hashlib.sha256()
    for file in _sources():
        found.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return found.hexdigest()
