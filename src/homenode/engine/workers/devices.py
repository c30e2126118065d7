"""What computes each worker's share: `--stage-devices` and the devices there are, to a device for each worker. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from homenode.errors import UserError

CPU = "cpu"
_TORCH = "torch:"
_SHORT = re.compile(r"(cuda|npu|xpu):(\d{1,4})")  # these alone are short for torch:...
_LONG = re.compile(r"torch:(?:cpu|[a-z]{2,12}(?::\d{1,4})?)")
_GRAMMAR = "cpu, cuda:N, npu:N, or torch:DEVICE, joined by commas, or auto"


@dataclass(frozen=True)
class DeviceFacts:
    """What a host has to compute with. `accelerators`: torch names without `torch:`, such as cuda:0, in the order they are taken. `torch`: whether
    PyTorch is installed."""

    accelerators: tuple[str, ...] = ()
    torch: bool = False


def is_torch(device: str) -> bool:
    """Whether the torch backend computes there."""
    return device.startswith(_TORCH)


def is_accelerator(device: str) -> bool:
    """Whether it has memory of its own."""
    return is_torch(device) and device != "torch:cpu"


def worker_devices(text: str, stages: int, ranks: int, facts: DeviceFacts, engine: int = 0, engines: int = 1) -> tuple[str, ...]:
    """The device of each worker of engine number `engine` of `engines`, stage after stage: `cpu` or `torch:DEVICE`.

    UserError, naming the setting, for a text that is no list of devices, has another number of them than there are stages or workers, names a
    device that is not there, or one twice.
    """
    workers = stages * ranks
    if text.strip() == "auto":
        taken = [_TORCH + name for name in facts.accelerators[engine * workers : (engine + 1) * workers]] if facts.torch else []
        return (*taken, *(CPU,) * (workers - len(taken)))
    every = _of_workers([_device(word) for word in text.split(",")], text, stages, ranks, engines)
    _check_there(every, facts)
    _check_apart(every)
    return every[engine * workers : (engine + 1) * workers]


def _device(word: str) -> str:
    word = word.strip().lower()
    if word == CPU or _LONG.fullmatch(word):
        return word
    if _SHORT.fullmatch(word):
        return _TORCH + word
    raise _refusal(f"{word[:40]!r} is no device; give {_GRAMMAR}")


def _of_workers(given: Sequence[str], text: str, stages: int, ranks: int, engines: int) -> tuple[str, ...]:
    """One for each worker of all engines. Those of one engine stand for each of several, unless they name accelerators, which one engine has."""
    workers = stages * ranks
    if len(given) == stages != workers:
        given = [device for device in given for _ in range(ranks)]
    if len(given) == workers:
        return tuple(given) * engines
    if len(given) == workers * engines:
        return tuple(given)
    ways = [f"{stages}, one for each stage"] if ranks > 1 else []
    ways += [f"{workers}, one for each {'worker' if ranks > 1 else 'stage'}"]
    ways += [f"{workers * engines}, one for each worker of all engines"] if engines > 1 else []
    raise _refusal(
        f"{text[:80]} names {len(given)} device{'s' if len(given) != 1 else ''} for --pipeline-parallel-size {stages} x "
        f"--tensor-parallel-size {ranks}; give {' or '.join(ways)}"
    )


def _check_there(devices: Sequence[str], facts: DeviceFacts) -> None:
    for device in devices:
        name = device.removeprefix(_TORCH)
        if not is_torch(device):
            continue
        if not facts.torch:
            raise _refusal(f"{name} needs PyTorch, which is not installed here; install homenode[torch]")
        known = re.fullmatch(r"(cuda|npu)(?::\d+)?", name)  # of other kinds only PyTorch itself knows
        if known and (name if ":" in name else f"{name}:0") not in facts.accelerators:
            there = ", ".join(facts.accelerators) or "no accelerator that this process may use"
            raise _refusal(f"{name} is not there; this host has {there}")


def _check_apart(devices: Sequence[str]) -> None:
    several = sorted({d.removeprefix(_TORCH) for d in devices if is_accelerator(d) and devices.count(d) > 1})
    if several:
        raise _refusal(f"{', '.join(several)} is named for more than one worker; each has a device of its own, or the CPU")


def _refusal(text: str) -> UserError:
    return UserError(f"--stage-devices: {text}", param="stage_devices")
