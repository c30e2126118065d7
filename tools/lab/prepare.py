"""Make everything that guests need: kernels, initial RAM disks, and for arm64 a root folder with Python and the
compiled core.

    python -m tools.lab.prepare [--arm64] [--folder .lab]

Needs Python and Debian's tools only; what is there already is kept. Nothing is installed: where a program is missing,
it is said which.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import sys
import time
from pathlib import Path

from tools.lab.archive import initramfs, modules_in_order
from tools.lab.debian import Packages, unpack_kernel
from tools.lab.folder import ARCHITECTURES, DEFAULT, LabError, LabFolder

PROGRAMS = {  # and the packages of Debian that hold them
    "x86_64": {"qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static", "setpriv": "util-linux"},
    "aarch64": {"qemu-system-aarch64": "qemu-system-arm", "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu"},
}
_INIT = Path(__file__).with_name("init.sh")


def missing(*archs: str) -> list[str]:
    """Packages of Debian that hold the programs which guests of these architectures need and which are not here."""
    return [package for arch in archs for program, package in PROGRAMS[arch].items() if shutil.which(program) is None]


def lacking(*archs: str) -> str:
    """Why guests of these architectures cannot run here, with what to do about it; empty where they can."""
    if platform.machine() != "x86_64":
        return f"the lab needs an x86-64 host, whose root folder its guests share; this is {platform.machine()}"
    if not (packages := missing(*archs)):
        return ""
    other = "; without the Arm machines: --arch x86_64" if "aarch64" in archs else ""
    return (
        f"not installed: {', '.join(packages)}. As root: apt-get install --no-install-recommends "
        f"{' '.join(packages)}{other}"
    )


def prepare(folder: LabFolder, arm64: bool) -> None:
    """Everything for x86-64 guests, and with `arm64` for those too. Raises LabError saying what is missing."""
    if reason := lacking("x86_64", *(["aarch64"] if arm64 else [])):
        raise LabError(reason)
    _prepare_kernel(folder, "x86_64", Path(shutil.which("busybox") or ""))
    if arm64:
        from tools.lab.arm64 import prepare_package, prepare_root

        prepare_root(folder)
        _prepare_kernel(folder, "aarch64", folder.arm_root / "bin" / "busybox")
        prepare_package(folder)


def _prepare_kernel(folder: LabFolder, arch: str, busybox: Path) -> None:
    image, archive = folder.kernel(arch), folder.initramfs(arch)
    if not image.exists():
        package = Packages(ARCHITECTURES[arch], folder.downloads).kernel()
        _say(f"kernel for {arch}: {package.name}, {package.stat().st_size >> 20} MiB")
        unpacked = image.parent / "unpacked"
        unpack_kernel(package, unpacked)
        package.unlink()
        image.symlink_to(max(unpacked.glob("boot/vmlinuz*")).relative_to(image.parent))
    if not archive.exists() or archive.stat().st_mtime < max(_INIT.stat().st_mtime, busybox.stat().st_mtime):
        content = initramfs(busybox.read_bytes(), _INIT.read_text(), modules_in_order(image.parent / "unpacked"))
        fresh = archive.with_name("initramfs.new")
        fresh.write_bytes(content)
        fresh.rename(archive)
        _say(f"initial RAM disk for {arch}: {len(content) >> 10} KiB")


def _say(what: str) -> None:
    print(f"lab: {what}", file=sys.stderr, flush=True)  # standard output is for results


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--folder", type=Path, default=DEFAULT, help="where it goes (default: .lab in the repository)")
    parser.add_argument("--arm64", action="store_true", help="arm64 guests too")
    given = parser.parse_args()
    began = time.monotonic()
    try:
        prepare(LabFolder(given.folder.resolve()), given.arm64)
    except (LabError, OSError) as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2
    _say(f"ready in {given.folder} after {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
