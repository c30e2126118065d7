"""Builds one wheel: the native core by g++ or Zig, the rest by the project's own build backend, the tag by auditwheel,
which looks what the core needs.

All wheels of a machine share one build folder, so that its kernels are compiled once: only what touches Python is
compiled for each.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tools.wheels import compilers
from tools.wheels.python_headers import write_headers
from tools.wheels.pythons import Python
from tools.wheels.run import run
from tools.wheels.targets import MachineTarget, PythonTarget, WheelError, faults, platform_tag

# auditwheel reads wheels for any machine, but takes only tags of the one that it runs on: it is told the wheel's.
_AUDITWHEEL = """
import platform, sys
machine = sys.argv.pop(1)
platform.machine = lambda: machine
from auditwheel.main import main
sys.exit(main())
"""


@dataclass(frozen=True)
class Workshop:
    """Where things are: the sources, the folder for what is built on the way, the folder for what is delivered, and the
    Zig compiler.
    """

    root: Path
    build: Path
    dist: Path
    zig: Path
    tell: Callable[[str], None]

    @property
    def environment(self) -> dict[str, str]:
        """That of this process, with the tools beside this Python first; packages made of the same commit are the same
        to the byte.
        """
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        return {
            **{name: value for name, value in os.environ.items() if name not in ("CC", "CXX", "CXXFLAGS", "CFLAGS")},
            "PATH": path,
            "CMAKE_GENERATOR": "Ninja",
            "PYTHONUNBUFFERED": "1",  # what is said is passed on at once
            "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH") or _commit_time(self.root),
        }

    def folder(self, machine: MachineTarget) -> Path:
        """Where the native core for this machine is built."""
        return self.build / machine.name

    def backend(self, python: Python) -> Path:
        """An interpreter with the locked versions of what homenode is built with, in an environment of its own."""
        folder = self.build / "python-{}.{}.{}".format(*python.version)
        interpreter, ready = folder / "bin/python", folder / "ready"
        locked = self.root / "requirements-build.txt"
        if ready.is_file() and ready.read_bytes() == locked.read_bytes():
            return interpreter
        subprocess.run([python.path, "-m", "venv", "--clear", folder], check=True, stdin=subprocess.DEVNULL)
        command: list[str | Path] = [
            interpreter,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--require-hashes",
            "-r",
            locked,
        ]
        run(command, self.build / f"{folder.name}.log", lambda line: None, self.environment, self.root, 600)
        ready.write_bytes(locked.read_bytes())
        return interpreter


def build_wheel(shop: Workshop, machine: MachineTarget, target: PythonTarget, python: Python) -> Path:
    """Build the wheel for these Pythons on this machine, and check it. WheelError where it cannot be built or is not
    what it is to be.
    """
    backend, build = shop.backend(python), shop.folder(machine)
    toolchain = shop.build / f"{machine.name}.cmake"
    gcc = compilers.find_gcc(machine)
    shop.tell(f"compiled by {gcc or 'Zig'}, linked by Zig")
    compilers.write_toolchain(shop.zig, machine, shop.root, toolchain, gcc)
    headers = write_headers(
        python,
        machine,
        shop.build / f"headers-3.{python.version[1]}-{machine.name}",
        compilers.zig_compiler(shop.zig, machine),
    )
    bare = shop.build / "bare"
    settings = {
        "build-dir": build,
        "cmake.define.CMAKE_TOOLCHAIN_FILE": toolchain,
        "cmake.define.Python_INCLUDE_DIR": headers,
    }
    command: list[str | Path] = [
        backend,
        "-m",
        "pip",
        "wheel",
        "-v",
        "--no-deps",
        "--no-build-isolation",
        "--no-cache-dir",
    ]
    command += [f"--config-settings={name}={value}" for name, value in settings.items()]
    command += ["--disable-pip-version-check", "--wheel-dir", bare, shop.root]
    environment = {
        **shop.environment,
        "_PYTHON_HOST_PLATFORM": f"linux-{machine.name}",
        "SETUPTOOLS_EXT_SUFFIX": f".cpython-3{python.version[1]}-{machine.name}-linux-gnu.so",
    }
    for old in bare.glob("*.whl"):
        old.unlink()
    # The backend empties a build folder that it used from another environment, kernels and all; each Python has its
    # own.
    (build / ".skbuild-info.json").unlink(missing_ok=True)
    run(command, shop.build / f"{machine.name}-{target.tag}.log", shop.tell, environment, shop.root)
    (wheel,) = bare.glob("*.whl")
    return _tagged(shop, machine, target, wheel)


def build_source(shop: Workshop, python: Python) -> Path:
    """Build the source distribution. WheelError where that fails."""
    script = "import sys; from scikit_build_core.build import build_sdist; print(build_sdist(sys.argv[1]))"
    log = shop.build / "source.log"
    run([shop.backend(python), "-c", script, shop.dist], log, shop.tell, shop.environment, shop.root, 600)
    return shop.dist / log.read_text(encoding="utf-8").split()[-1]


def _tagged(shop: Workshop, machine: MachineTarget, target: PythonTarget, wheel: Path) -> Path:
    """The wheel under the name that says which systems it is for, once it was looked through: by us, and by
    auditwheel.
    """
    module = f"homenode/{target.module(machine)}"
    with zipfile.ZipFile(wheel) as archive:
        if module not in archive.namelist():
            raise WheelError(
                f"{wheel.name} has no {module}: its native core was not compiled; see the log in {shop.build}"
            )
        if wrong := faults(machine, archive.read(module), wheel.stat().st_size):
            raise WheelError(f"{wheel.name} cannot be released: {'; '.join(wrong)}")
    tag = platform_tag(machine, compilers.GLIBC)
    command: list[str | Path] = [
        Path(sys.executable),
        "-c",
        _AUDITWHEEL,
        machine.name,
        "repair",
        "--plat",
        tag,
        "--only-plat",
        "--wheel-dir",
        shop.dist,
        wheel,
    ]
    run(
        command,
        shop.build / f"auditwheel-{machine.name}-{target.tag}.log",
        lambda line: None,
        shop.environment,
        shop.root,
        120,
    )
    name = f"{'-'.join(wheel.name.split('-')[:2])}-{target.tag}-{tag}.whl"
    if not (shop.dist / name).is_file():
        raise WheelError(f"auditwheel made no {name} of {wheel.name}; see the log in {shop.build}")
    return shop.dist / name


def _commit_time(root: Path) -> str:
    """When the last commit was made, in seconds since 1970; of sources without a repository, the beginning of what
    archives can hold.
    """
    asked = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=root, capture_output=True, text=True)
    return asked.stdout.strip() if asked.returncode == 0 and asked.stdout.strip() else "315532800"
