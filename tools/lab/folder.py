"""Where the lab keeps what it downloads, builds and saves. Everything in it can be deleted; `python -m
tools.lab.prepare` makes it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # the kernel's word and Debian's
ROOT = Path(__file__).resolve().parents[2]  # of the repository
DEFAULT = ROOT / ".lab"


class LabError(Exception):
    """What the lab lacks and what to do about it; told without a traceback."""


@dataclass(frozen=True, slots=True)
class LabFolder:
    """Paths below `path`. `arch` is one of ARCHITECTURES."""

    path: Path

    def kernel(self, arch: str) -> Path:
        return self.path / "kernels" / arch / "vmlinuz"

    def initramfs(self, arch: str) -> Path:
        return self.path / "kernels" / arch / "initramfs"

    @property
    def arm_root(self) -> Path:
        """The root folder of the arm64 guests."""
        return self.path / "arm64"

    @property
    def arm_package(self) -> Path:
        """The compiled core for arm64 guests, laid over the package of the tree."""
        return self.path / "arm64-native"

    @property
    def downloads(self) -> Path:
        return self.path / "downloads"

    @property
    def saved(self) -> Path:
        """Machines stopped just before their first command."""
        return self.path / "saved"

    def ready(self, arch: str) -> bool:
        """Whether guests of this architecture can be started."""
        made = self.initramfs(arch).is_file() and self.kernel(arch).is_file()
        return made and (
            arch == "x86_64" or ((self.arm_root / "usr").is_dir() and (self.arm_package / "_native.so").is_file())
        )
