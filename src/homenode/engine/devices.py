"""The device that computes each worker's share: `--stage-devices` and the accelerators there are, to a device for each
worker. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from homenode.compute.devices import parse_device
from homenode.errors import UserError
from homenode.units import format_count

CPU = "cpu"


def is_torch(device: str) -> bool:
    """Return whether the torch backend computes there."""
    return device.startswith("torch:")


def is_accelerator(device: str) -> bool:
    """Return whether it has memory of its own."""
    return is_torch(device) and device != "torch:cpu"


def is_npu(device: str) -> bool:
    """Return whether it is an Ascend NPU, whose driver has threads and interrupts with CPUs of their own."""
    return device.startswith("torch:npu")


def worker_devices(
    text: str, stages: int, ranks: int, accelerators: Sequence[str] = (), engine: int = 0, engines: int = 1
) -> tuple[str, ...]:
    """The device of each worker of engine number `engine` of `engines`, stage after stage: `cpu` or `torch:DEVICE`.

    `accelerators`: those there are, for auto, in the order they are taken. UserError, naming the setting, for a text
    that is no list of devices, has another number of them than there are stages or workers, or names an accelerator
    twice.
    """
    workers = stages * ranks
    if text.strip() == "auto":
        taken = accelerators[engine * workers : (engine + 1) * workers]
        return (*taken, *(CPU,) * (workers - len(taken)))
    every = _of_workers([parse_device(word) for word in text.split(",")], text, stages, ranks, engines)
    _check_apart(every)
    return every[engine * workers : (engine + 1) * workers]


def _of_workers(given: Sequence[str], text: str, stages: int, ranks: int, engines: int) -> tuple[str, ...]:
    """One for each worker of all engines; those of one engine stand for each of several."""
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
        f"{text[:80]} names {format_count(len(given), 'device')} for --pipeline-parallel-size {stages} x "
        f"--tensor-parallel-size {ranks}; give {' or '.join(ways)}"
    )


def _check_apart(devices: Sequence[str]) -> None:
    several = sorted({d.removeprefix("torch:") for d in devices if is_accelerator(d) and devices.count(d) > 1})
    if several:
        raise _refusal(
            f"{', '.join(several)} is named for more than one worker; each has a device of its own, or the CPU"
        )


def _refusal(text: str) -> UserError:
    return UserError(f"--stage-devices: {text}", param="stage_devices")


def executor_kind(wanted: str, devices: Sequence[str]) -> str:
    """inline, processes or ray: `--executor`, or what auto comes to. UserError where inline cannot do it."""
    alone = list(devices) == ["cpu"]
    if wanted == "auto":
        return "inline" if alone else "processes"
    if wanted == "inline" and not alone:
        raise UserError(
            f"--executor inline has one CPU worker; this engine has {', '.join(devices)}. Give --executor "
            "processes, or leave it out",
            param="executor",
        )
    return wanted
