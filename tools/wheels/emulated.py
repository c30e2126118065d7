"""The checks of the kernels, linked with the very objects that are in a wheel, on this machine or through an emulator
of its processor.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Sequence
from pathlib import Path

from tools.wheels.build import Workshop
from tools.wheels.run import run
from tools.wheels.targets import MachineTarget, WheelError

# Checks of csrc/tests and their rounds: every kernel at every level, then what is built of them.
CHECKS = (("levels", 6), ("linear", 2), ("program", 3), ("elements", 5), ("copy", 3), ("attention", 2))
_LIBRARIES = "/usr/{machine}-linux-gnu"  # where Debian keeps the C library of other machines


def how_to_run(machine: MachineTarget) -> Sequence[str] | str:
    """The words before a program of this machine that run it here; or, as one string, why it cannot be run."""
    if platform.machine() == machine.name:
        return ()
    emulator, libraries = shutil.which(f"qemu-{machine.name}"), Path(_LIBRARIES.format(machine=machine.name))
    if emulator is None or not libraries.is_dir():
        return (
            f"no emulator of {machine.name} here, or no C library for it (Debian: qemu-user, libc6-arm64-cross): "
            f"its kernels are not checked"
        )
    return (emulator, "-cpu", "max", "-L", str(libraries))


def check_kernels(shop: Workshop, machine: MachineTarget, before: Sequence[str]) -> str:
    """Compile and run the checks. Returns the levels that were gone through. WheelError where one fails."""
    ninja = shutil.which("ninja", path=shop.environment["PATH"])
    if ninja is None:
        raise WheelError("ninja is not installed: run `make wheels`")
    folder = shop.folder(machine)
    run(
        [ninja, "-C", folder, "homenode_checks"],
        shop.build / f"checks-{machine.name}.log",
        shop.tell,
        shop.environment,
        shop.root,
    )
    levels: list[str] = []
    for number, (check, rounds) in enumerate(CHECKS, 1):
        log = shop.build / f"check-{machine.name}-{check}.log"
        shop.tell(f"check {number} of {len(CHECKS)}: {check}")
        run(
            [*before, folder / "homenode_checks", check, str(rounds), "1"],
            log,
            lambda line: None,
            shop.environment,
            shop.root,
            900,
        )
        cells = (line.split("\t") for line in log.read_text(encoding="utf-8").splitlines())
        levels += [cell[1] for cell in cells if len(cell) == 4]
    seen = list(dict.fromkeys(levels))
    if missing := [level for level in machine.levels if level not in seen] if before else []:
        raise WheelError(f"the emulator of {machine.name} does not run the levels {', '.join(missing)}")
    return ", ".join(seen)
