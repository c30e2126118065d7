"""The initial RAM disk of the guests: a cpio archive (the kernel's
Documentation/driver-api/early-userspace/buffer-format.rst) written here, so that neither cpio nor root is needed.
"""

from __future__ import annotations

import gzip
import io
import lzma
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from tools.lab.folder import LabError

# What a guest needs beyond the kernel image; names built into it are simply not in the package. nvme stands in for
# devices whose interrupts the kernel keeps for itself.
MODULES = (
    "virtio virtio_ring virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci netfs fscache 9pnet "
    "9pnet_virtio 9p overlay "
    "failover net_failover virtio_net nvme-keyring nvme-auth nvme-core nvme"
).split()


class Cpio:
    """An archive of the kind `newc`. Paths are relative; folders come before what is in them."""

    def __init__(self) -> None:
        self._out = io.BytesIO()
        self._count = 0

    def folder(self, name: str) -> None:
        self._entry(name, stat.S_IFDIR | 0o755)

    def file(self, name: str, data: bytes, mode: int = 0o644) -> None:
        self._entry(name, stat.S_IFREG | mode, data)

    def character_device(self, name: str, major: int, minor: int) -> None:
        self._entry(name, stat.S_IFCHR | 0o600, device=(major, minor))

    def finish(self) -> bytes:
        self._entry("TRAILER!!!", 0)
        return self._out.getvalue()

    def _entry(self, name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
        self._count += 1
        path = name.encode() + b"\0"
        fields = (self._count, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(path), 0)
        head = b"070701" + b"".join(b"%08X" % value for value in fields) + path
        self._out.write(head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4))


def initramfs(busybox: bytes, init: str, modules: Iterable[tuple[str, bytes]]) -> bytes:
    """The compressed archive: `busybox` (a static program), the `init` script, and kernel modules as (name, content) in
    the order of loading.
    """
    archive = Cpio()
    for folder in ("bin", "dev", "modules"):
        archive.folder(folder)
    archive.character_device("dev/console", 5, 1)
    archive.file("bin/busybox", busybox, 0o755)
    archive.file("init", init.encode(), 0o755)
    names = []
    for name, content in modules:
        archive.file(f"modules/{name}.ko", content)
        names.append(f"{name}.ko\n")
    archive.file("modules/order", "".join(names).encode())
    return gzip.compress(archive.finish(), 1, mtime=0)


def modules_in_order(folder: Path, wanted: Iterable[str] = MODULES) -> Iterator[tuple[str, bytes]]:
    """Modules below `folder` and those they depend on, each after its own; unpacked, as busybox loads no compressed
    ones.
    """
    files = {_plain(file.name.split(".ko")[0]): file for file in folder.rglob("*.ko*")}
    done: set[str] = set()

    def visit(name: str) -> Iterator[tuple[str, bytes]]:
        if name in done or name not in files:
            return
        done.add(name)
        content = _unpacked(files[name])
        for other in dependencies(content):
            yield from visit(other)
        yield name, content

    for name in wanted:
        yield from visit(_plain(name))


def dependencies(module: bytes) -> tuple[str, ...]:
    """Names after `depends=` in a module's section .modinfo."""
    start = module.find(b"\0depends=")
    if start < 0:
        return ()
    names = module[start + 9 : module.index(b"\0", start + 1)].decode()
    return tuple(_plain(name) for name in names.split(",") if name)


def _plain(name: str) -> str:
    return name.replace("-", "_")


def _unpacked(file: Path) -> bytes:
    content = file.read_bytes()
    if file.suffix == ".xz":
        return lzma.decompress(content)
    if file.suffix != ".ko":
        raise LabError(f"{file} is compressed in a way the lab does not read (.ko and .ko.xz it does)")
    return content
