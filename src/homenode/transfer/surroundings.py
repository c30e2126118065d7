"""What this machine has for handing KV over: read here, judged in `transfer.check`."""

from __future__ import annotations

import importlib.util
import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from homenode.transfer.settings import TransferConfig

LIBRARIES = {"nixl": "nixl", "hccl": "torch_npu"}  # channels that need a library, and its module

_BUILDS = {"nixl": ("nixl_cu12", "nixl_cu13")}  # other modules that are as good


@dataclass(frozen=True)
class Surroundings:
    """`channels`: those homenode has a carrier for that works here. `libraries`: the modules of LIBRARIES that are
    installed. `devices`: of each kind of accelerator, how many are here. `address_problem`: why `pd_peer_host` cannot
    be taken, empty if it can. `busy_ports`: those of the settings that something else has."""

    channels: tuple[str, ...] = ("shm", "tcp")
    libraries: tuple[str, ...] = ()
    devices: tuple[tuple[str, int], ...] = ()
    loopback: bool = True
    address_problem: str = ""
    busy_ports: tuple[int, ...] = ()

    def count(self, kind: str) -> int:
        """Accelerators of a kind, `cuda` or `npu`."""
        return dict(self.devices).get(kind, 0)


def way_to_library(channel: str) -> str:
    """How the library that a channel of LIBRARIES needs is got on this machine."""
    from homenode.installation import extra_command

    return extra_command("nixl", "nixl-cu12") if channel == "nixl" else "it comes with the vendor's torch_npu"


def read_surroundings(
    config: TransferConfig, dev: Path = Path("/dev"), has: Callable[[str], bool] | None = None
) -> Surroundings:
    """The facts these settings depend on. Ports are taken for a moment and given back."""
    from homenode.transfer.carrier_registry import channels  # brings what carries pages, which a front does not need

    has = has or (lambda module: importlib.util.find_spec(module) is not None)
    libraries = tuple(
        module for module in LIBRARIES.values() if any(has(one) for one in (module, *_BUILDS.get(module, ())))
    )
    known = tuple(name for name in channels() if name not in LIBRARIES or LIBRARIES[name] in libraries)
    devices = (("cuda", _devices(dev, "nvidia")), ("npu", _devices(dev, "davinci")))
    found = _resolve(config.pd_peer_host)
    if isinstance(found, str):
        return Surroundings(known, libraries, devices, False, found)
    family, address = found
    loopback = ipaddress.ip_address(address.partition("%")[0]).is_loopback
    problem = _try(family, address, 0)
    if problem:
        return Surroundings(known, libraries, devices, loopback, problem)
    wanted = _wanted_ports(config) if config.transfer_channel != "shm" else ()  # shared memory takes names, no ports
    return Surroundings(
        known, libraries, devices, loopback, "", tuple(port for port in wanted if _try(family, address, port))
    )


def _wanted_ports(config: TransferConfig) -> tuple[int, ...]:
    """What this side listens on."""
    ports = config.done_ports if config.pd_role == "sender" else (*config.pd_peer_init_port, *config.pd_peer_alloc_port)
    return tuple(dict.fromkeys(port for port in ports if port))


def _devices(dev: Path, name: str) -> int:
    return sum(entry.name.removeprefix(name).isdecimal() for entry in dev.glob(f"{name}*"))


def _resolve(host: str) -> tuple[int, str] | str:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        return f"no such address ({getattr(error, 'strerror', None) or error})"
    return family, str(address[0])


def _try(family: int, address: str, port: int) -> str:
    with socket.socket(family, socket.SOCK_STREAM) as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind((address, port))
        except OSError as error:
            return error.strerror or str(error)
    return ""
