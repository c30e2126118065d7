"""Debian's packages, downloaded and unpacked without installing them: guest kernels, and the root folder of arm64
guests.

arm64 packages come through an apt of its own folder: the host's list of architectures and its state are left as they
are. No root is needed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.lab.folder import LabError

_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
_SOURCES = "$(REPO_URI) $(RELEASE) $(COMPONENT)"
_ARM_PROGRAMS = "python3 busybox-static dash coreutils grep sed util-linux numactl libgomp1 libstdc++6".split()
# The newest kernel of Debian 12 first; both name the package to be had.
_KERNELS = ("linux-image-6.12-{arch}", "linux-image-{arch}")
DOWNLOAD_S = 600.0
_LISTS_S = 3600.0


def run(words: Sequence[str | Path], more: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    """The output of a command, with `more` in its environment. LabError when it fails or is not there."""
    try:
        done = subprocess.run(
            [*map(str, words)],
            cwd=cwd,
            env={**os.environ, **(more or {})},
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_S,
            check=False,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise LabError(f"{words[0]}: {error}") from None
    if done.returncode:
        raise LabError(f"{' '.join(map(str, words))}: {(done.stderr or done.stdout).strip()[-1500:]}")
    return done.stdout


class Packages:
    """Packages of one architecture, in Debian's words `amd64` or `arm64`, by way of `folder`."""

    def __init__(self, arch: str, folder: Path) -> None:
        if shutil.which("apt-get") is None:
            raise LabError(
                "the lab takes its kernels from Debian's packages, and there is no apt-get here: prepare it "
                "on Debian, and copy the folder"
            )
        self._arch = arch
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        own = run(["dpkg", "--print-architecture"]).strip()
        self._options = ["-o", "Debug::NoLocking=1", *([] if arch == own else self._apart())]

    def kernel(self) -> Path:
        """The package of the kernel with support for NUMA and 9p, downloaded."""
        for name in _KERNELS:
            found = re.search(r"Depends: (linux-image-\S+)", self._cache("depends", name.format(arch=self._arch)))
            if found:
                return self._download([found[1]])[0]
        raise LabError(f"apt knows no kernel for {self._arch}; run `apt-get update` as root and try again")

    def root(self, folder: Path) -> None:
        """The packages of an arm64 guest with all they need, unpacked into `folder`; what their own scripts would link
        is linked here.
        """
        archives = self._folder / "apt" / "cache" / "archives"
        run(
            [
                "apt-get",
                "-qq",
                "-y",
                *self._options,
                "--no-install-recommends",
                "--download-only",
                "install",
                *_ARM_PROGRAMS,
            ]
        )
        fresh = folder.with_name(folder.name + ".new")
        shutil.rmtree(fresh, ignore_errors=True)
        for package in sorted(archives.glob("*.deb")):
            run(["dpkg-deb", "-x", package, fresh])
        shell = fresh / "bin" / "sh"
        shell.unlink(missing_ok=True)
        shell.symlink_to("dash")
        fresh.rename(folder)
        shutil.rmtree(archives)

    def headers(self, python: str, folder: Path) -> Path:
        """The C headers of the guest's Python (`3.11`), below `folder`; the folder that is to be given to a
        compiler.
        """
        for package in self._download([f"libpython{python}-dev"]):
            run(["dpkg-deb", "-x", package, folder])
        return folder / "usr" / "include"

    def _download(self, names: Sequence[str]) -> list[Path]:
        found = []
        for name in names:
            kept = sorted(self._folder.glob(f"{name}_*_{self._arch}.deb"))
            if not kept:
                run(
                    ["apt-get", "-qq", *self._options, "-o", "APT::Sandbox::User=root", "download", name],
                    cwd=self._folder,
                )
                kept = sorted(self._folder.glob(f"{name}_*_{self._arch}.deb"))
            found.append(kept[-1])
        return found

    def _cache(self, *words: str) -> str:
        done = subprocess.run(
            ["apt-cache", *self._options, *words], capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout

    def _apart(self) -> list[str]:
        """Options of an apt for another architecture, from the addresses that the host's own apt uses; its lists are
        fetched.
        """
        state = self._folder / "apt"
        for folder in ("lists/partial", "cache/archives/partial"):
            (state / folder).mkdir(parents=True, exist_ok=True)
        (state / "status").touch()
        known = sorted(
            {
                line
                for line in run(["apt-get", "indextargets", "--format", _SOURCES, "Created-By: Packages"]).splitlines()
                if "debian" in line
            }
        )
        signed = f" signed-by={_KEYS}" if Path(_KEYS).exists() else ""
        (state / "sources.list").write_text("".join(f"deb [arch={self._arch}{signed}] {line}\n" for line in known))
        settings = {
            "APT::Architecture": self._arch,
            "APT::Architectures": self._arch,
            "APT::Sandbox::User": "root",
            "Dir::State::lists": state / "lists",
            "Dir::State::status": state / "status",
            "Dir::Cache": state / "cache",
            "Dir::Etc::sourcelist": state / "sources.list",
            "Dir::Etc::sourceparts": "-",
        }
        options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
        if not _fetched(state / "lists"):
            run(["apt-get", "-qq", "-o", "Debug::NoLocking=1", *options, "update"])
        return options


def _fetched(lists: Path) -> bool:
    """Whether the lists of packages are there and not too old to name packages that the archive still has."""
    found = [file.stat().st_mtime for file in lists.glob("*_Packages*")]
    return bool(found) and time.time() - min(found) < _LISTS_S


def unpack_kernel(package: Path, folder: Path) -> None:
    """Image and modules of a kernel's package into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as archive:
        wanted = [
            "./boot/vmlinuz*",
            "*/kernel/net/9p/*",
            "*/kernel/fs/9p/*",
            "*/kernel/fs/netfs/*",
            "*/kernel/fs/fscache/*",
        ]
        wanted += [
            "*/kernel/fs/overlayfs/*",
            "*/virtio/*.ko*",
            "*/net/virtio_net.ko*",
            "*/net/core/failover.ko*",
            "*/net/net_failover.ko*",
        ]
        wanted += ["*/nvme/host/nvme*.ko*", "*/nvme/common/*"]
        # tar ends with an error when a pattern matches nothing: a module may be built in. The image is looked for
        # below.
        subprocess.run(
            ["tar", "-x", "-C", folder, "--wildcards", *wanted],
            stdin=archive.stdout,
            stderr=subprocess.DEVNULL,
            timeout=DOWNLOAD_S,
            check=False,
        )
    if not list(folder.glob("boot/vmlinuz*")):
        raise LabError(f"{package.name} holds no kernel image")
