"""Facts of this machine that a KV transfer depends on: read here, judged in `transfer.setup.checks`."""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from homenode.transfer.setup.settings import CHANNELS, TransferConfig

HCCL, ACL = "libhccl.so", "libascendcl.so"
_HOME_VARIABLES = ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH")
_ASCEND = "/usr/local/Ascend"
_FOLDERS = (
    f"{_ASCEND}/ascend-toolkit/latest/lib64",
    f"{_ASCEND}/latest/lib64",
    "/usr/local/lib",
    "/usr/lib64",
    "/usr/lib",
)
_NIXL_BUILDS = ("nixl", "nixl_cu12", "nixl_cu13")  # modules, each as good as the others


@dataclass(frozen=True)
class Surroundings:
    """`channels`: those that work here. `lacking`: the others, each with what is missing for it, in words. `devices`:
    of each kind of accelerator, how many are here. `address_problem`: why `pd_peer_host` cannot be taken, empty if it
    can. `busy_ports`: those of the settings that something else has."""

    channels: tuple[str, ...] = ("shm", "tcp")
    lacking: tuple[tuple[str, str], ...] = ()
    devices: tuple[tuple[str, int], ...] = ()
    loopback: bool = True
    address_problem: str = ""
    busy_ports: tuple[int, ...] = ()

    def count(self, kind: str) -> int:
        """Accelerators of a kind, `cuda` or `npu`."""
        return dict(self.devices).get(kind, 0)


def read_surroundings(
    config: TransferConfig,
    dev: Path = Path("/dev"),
    has: Callable[[str], bool] | None = None,
    variables: Mapping[str, str] | None = None,
) -> Surroundings:
    """The facts these settings depend on. Ports are taken for a moment and given back. `has`: whether a module is
    installed; `variables`: of the environment."""
    has = has or (lambda module: importlib.util.find_spec(module) is not None)
    devices = (("cuda", _devices(dev, "nvidia")), ("npu", _devices(dev, "davinci")))
    missing = {
        "nixl": "" if any(map(has, _NIXL_BUILDS)) else _no_nixl(),
        "hccl": _no_hccl(dict(devices)["npu"], os.environ if variables is None else variables),
    }
    libraries = tuple((name, words) for name, words in missing.items() if words)
    known = tuple(name for name in CHANNELS if not missing.get(name))
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


def _no_nixl() -> str:
    from homenode.installation import extra_command

    return f"the nixl package is not installed here ({extra_command('nixl', 'nixl-cu12')})"


def _no_hccl(npus: int, variables: Mapping[str, str]) -> str:
    """Return what of an NPU and of the vendor's toolkit is not here; empty where all is."""
    missing = [] if npus else ["no NPU (/dev/davinciN)"]
    if libraries := missing_libraries(variables):
        missing.append(f"no {' and no '.join(libraries)} (of CANN, looked for on LD_LIBRARY_PATH)")
    return f"its carrier moves KV by way of an NPU, and here is {' and '.join(missing)}" if missing else ""


def _wanted_ports(config: TransferConfig) -> tuple[int, ...]:
    """Return what this side listens on."""
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


def library_file(name: str, variables: Mapping[str, str]) -> Path | None:
    """Return where a library is: on LD_LIBRARY_PATH, in the toolkit that a variable names, or where it is installed."""
    folders = [folder for folder in variables.get("LD_LIBRARY_PATH", "").split(":") if folder]
    folders += [f"{variables[home]}/lib64" for home in _HOME_VARIABLES if variables.get(home)]
    found = (Path(folder) / name for folder in (*folders, *_FOLDERS))
    return next((file for file in found if file.is_file()), None)


def missing_libraries(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return those that are not to be found."""
    return tuple(name for name in (HCCL, ACL) if library_file(name, variables) is None)
