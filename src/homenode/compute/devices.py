"""The words for what computes, and whether it is there: read without importing torch, which takes seconds and may open
every card.

`cpu` is the native core. `torch:DEVICE` is the torch backend on DEVICE as torch writes it: `torch:cuda:0`, `torch:cpu`.
An accelerator's own name is short for that: `cuda:0`, `npu:1`.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from homenode.errors import HostError, UnsupportedError, UserError
from homenode.installation import extra_command, install_command

# Torch has devices of these kinds; the ones in PLUGINS after a package of the vendor's was imported.
KINDS = ("cpu", "cuda", "npu", "xpu", "mps", "mlu", "musa")
PLUGINS: Mapping[str, str] = MappingProxyType({"npu": "torch_npu", "mlu": "torch_mlu", "musa": "torch_musa"})
# A machine without any of these has no accelerator that torch could find.
_NODES = {
    "cuda": ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd"),
    "npu": ("/dev/davinci_manager",),
    "xpu": ("/dev/dri/renderD128",),
}
_ATTENTION_PACKAGES = {"flash": ("flash_attn", "flash-attn"), "flashinfer": ("flashinfer", "flashinfer-python")}
_ASKED_S = 60.0  # importing torch from a cold disk, and waking a driver
_NAME = re.compile(r"(torch:)?([a-z]+)(?::(\d{1,4}))?")


def parse_device(word: str, accelerator_of: bool = True) -> str:
    """The full name of a device: `cpu`, or `torch:KIND[:N]`. With `accelerator_of` False plain `cpu` is torch's too.

    UserError for a word that is none.
    """
    found = _NAME.fullmatch(word.strip())
    if found is None or found[2] not in KINDS or (found[2] == "cpu" and found[3]):
        raise UserError(
            f"there is no device {word!r}: write cpu, cuda:N, npu:N, or torch: before a device of torch, as in "
            "torch:cpu",
            param="stage_devices",
        )
    prefix, kind, index = found.groups()
    if kind == "cpu":
        return "torch:cpu" if prefix or not accelerator_of else "cpu"
    return f"torch:{kind}:{int(index or 0)}"


def torch_missing(device: str, param: str = "stage_devices") -> UserError | None:
    """Return why the torch backend cannot be had for this device at all, if so: packages that are not installed.
    `param`: the setting that asks for it.
    """
    if importlib.util.find_spec("torch") is None:
        return UnsupportedError(
            f"{device} needs torch, which is not installed: {extra_command('torch', 'torch')}",
            param=param,
            device=device,
        )
    plugin = PLUGINS.get(device.removeprefix("torch:").partition(":")[0])
    if plugin and importlib.util.find_spec(plugin) is None:
        return UnsupportedError(f"{device} needs {plugin}, which is not installed", param=param, device=device)
    return None


def device_problems(devices: Sequence[str]) -> list[UserError]:
    """Return what is wrong with these devices on this machine: words that are none, packages and devices that are not
    there, each named.

    Torch is asked, in a process of its own, only where an accelerator is named. HostError when that process gives no
    answer.
    """
    found: list[UserError] = []
    accelerators: list[str] = []
    for word in dict.fromkeys(devices):
        try:
            device = parse_device(word)
        except UserError as error:
            found.append(error)
            continue
        if device != "cpu" and (missing := torch_missing(device)):
            found.append(missing)
        elif device not in ("cpu", "torch:cpu"):
            accelerators.append(device)
    return found + (_absent(accelerators) if accelerators else [])


def accelerators() -> tuple[str, ...]:
    """Every accelerator torch can compute on, in full: () at once where there is no torch or nothing that looks like
    one.
    """
    kinds = tuple(kind for kind, nodes in _NODES.items() if any(Path(node).exists() for node in nodes))
    kinds = tuple(kind for kind in kinds if torch_missing(f"torch:{kind}") is None)
    if not kinds:
        return ()
    return tuple(f"torch:{kind}:{index}" for kind, count in _count(kinds).items() for index in range(count))


def _absent(devices: Sequence[str]) -> list[UserError]:
    split = [(device, *device.removeprefix("torch:").split(":")) for device in devices]
    counts = _count(tuple(dict.fromkeys(kind for _, kind, _ in split)))
    return [
        UserError(
            f"{device.removeprefix('torch:')} is not there: torch sees {counts[kind] or 'no'} {kind} "
            f"device{'' if counts[kind] == 1 else 's'}",
            param="stage_devices",
            device=device,
        )
        for device, kind, index in split
        if int(index) >= counts[kind]
    ]


def device_memory(devices: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Bytes that are free on each of these accelerators, and that it has; one whose kind does not tell is missing.
    HostError as above.
    """
    answer = _asked("--memory", *dict.fromkeys(device.removeprefix("torch:").partition(":")[0] for device in devices))
    found = {}
    for device in devices:
        kind, _, index = device.removeprefix("torch:").partition(":")
        of_kind = answer.get(kind) or []
        if int(index or 0) < len(of_kind):
            free, total = of_kind[int(index or 0)]
            found[device] = (int(free), int(total))
    return found


def _count(kinds: Sequence[str]) -> dict[str, int]:
    """Return how many devices of each kind torch sees."""
    answer = _asked(*kinds)
    return {kind: int(answer[kind]) for kind in kinds}


def _asked(*arguments: str) -> dict[str, Any]:
    """Return what torch says in a process of its own."""
    command = [sys.executable, "-m", "homenode.compute.torch.probe", *arguments]
    try:
        asked = subprocess.run(command, capture_output=True, timeout=_ASKED_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise HostError(
            f"torch did not say within {_ASKED_S:.0f} s which devices there are; is a driver stuck?"
        ) from error
    try:
        answer: dict[str, Any] = json.loads(asked.stdout.splitlines()[-1])
        return answer
    except (ValueError, IndexError) as error:
        said = asked.stderr.decode(errors="replace").strip().splitlines()
        raise HostError(
            "torch could not be asked which devices there are: "
            f"{said[-1] if said else f'it ended with {asked.returncode}'}"
        ) from error


def attention_problem(name: str, device: str, kv_dtype: str) -> UserError | None:
    """Return why this `--attention-backend` cannot serve this device with keys and values of this type, if so.
    docs/attention.md has the table.
    """
    package = _ATTENTION_PACKAGES.get(name)
    if package is None:
        return None
    param, kind = "attention_backend", device.removeprefix("torch:").partition(":")[0]
    if kind != "cuda":
        return UnsupportedError(
            f"--attention-backend {name} computes on cuda devices only, not on {device}; take sdpa", param=param
        )
    if kv_dtype != "bf16":
        return UnsupportedError(
            f"--attention-backend {name} reads keys and values as bf16 only, not as {kv_dtype}; give "
            "--kv-cache-dtype bf16, or take sdpa",
            param=param,
        )
    if importlib.util.find_spec(package[0]) is None:
        return UnsupportedError(
            f"--attention-backend {name} needs a package that is not installed: {install_command(package[1])}",
            param=param,
        )
    return None
