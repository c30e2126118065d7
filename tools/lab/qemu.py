"""The command that starts a guest. Pure.

Why these options: software emulation (TCG) runs wherever qemu does, and one thread of it, as with several qemu 7.2
crashed some kernels while they patched their own code. Time comes from the HPET: a time-stamp counter measured on a
busy host made clocks run forty times too fast, in every guest that went on from that machine. The kernel is told to
leave out what costs seconds under emulation and concerns no test.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.lab.topologies import Topology, machine_words

_KERNEL_WORDS = (
    "quiet panic=-1 mitigations=off nokaslr audit=0 random.trust_cpu=1 tsc=unstable clocksource=hpet "
    "no_timer_check numa_balancing=disable cryptomgr.notests "
    "initcall_blacklist=jent_mod_init,init_encrypted,load_system_certificate_list,crypto_kdf108_init"
)
_MACHINES = {
    "x86_64": ["-machine", "q35,vmport=off", "-cpu", "max"],
    "aarch64": ["-machine", "virt,gic-version=3", "-cpu", "max,pauth-impdef=on"],
}
_CONSOLES = {"x86_64": "ttyS0", "aarch64": "ttyAMA0"}


@dataclass(frozen=True, slots=True)
class Share:
    """A folder of the host that the guest mounts by its `tag`."""

    tag: str
    path: Path
    read_only: bool = True


def command(
    topology: Topology,
    arch: str,
    kernel: Path,
    archive: Path,
    shares: tuple[Share, ...],
    console: int,
    monitor: int,
    saved: Path | None,
) -> list[str]:
    """Words of the command. `console` and `monitor` are open sockets that qemu inherits; with `saved` the guest goes on
    from that file.
    """
    words = [
        "setpriv",
        "--pdeathsig",
        "KILL",
        f"qemu-system-{arch}",
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-no-reboot",
    ]
    words += ["-accel", "tcg,thread=single,tb-size=512", *_MACHINES[arch], *machine_words(topology, arch)]
    words += ["-kernel", str(kernel), "-initrd", str(archive), "-append", f"console={_CONSOLES[arch]} {_KERNEL_WORDS}"]
    for number, share in enumerate(shares):
        only = ",readonly=on" if share.read_only else ""
        words += ["-fsdev", f"local,id=share{number},path={share.path},security_model=none,multidevs=remap{only}"]
        words += ["-device", f"virtio-9p-pci,fsdev=share{number},mount_tag={share.tag},bus=pcie.0"]
    words += ["-chardev", f"socket,id=console,fd={console}", "-serial", "chardev:console"]
    words += ["-chardev", f"socket,id=monitor,fd={monitor}", "-mon", "chardev=monitor,mode=control"]
    return words + (["-incoming", f"exec:cat '{saved}'"] if saved else [])


def identity(topology: Topology, arch: str, tags: tuple[str, ...], versions: Mapping[str, object]) -> str:
    """A name for what a saved machine depends on: the same machine, kernel, RAM disk and qemu. Paths of the host are
    none of it.
    """
    shares = tuple(Share(tag, Path("/"), tag != "out") for tag in tags)
    words = command(topology, arch, Path("kernel"), Path("archive"), shares, 0, 0, None)
    return hashlib.sha256(repr((words, sorted(versions.items()))).encode()).hexdigest()[:16]
