"""The devices that a process may use, from a flag or from the variable of the vendor. The order is the user's: rank 0
drives the first.

Sources: CUDA C++ Programming Guide, "CUDA Environment Variables"; ROCm documentation, "GPU isolation techniques"; CANN,
ASCEND_RT_VISIBLE_DEVICES.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from homenode.errors import PlacementError
from homenode.host.topology.accelerator_kinds import KINDS
from homenode.host.topology.accelerators.cells import number, quoted
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Accelerator, Accelerators
from homenode.units import format_count

_FLAG = "--visible-devices"
_NONE = "NoDevFiles"  # what Slurm and CUDA's own tools set for: no device
_MOST_TEXT = 1 << 16


@dataclass(frozen=True, slots=True)
class Visible:
    """The devices that a process sees of a host's accelerators. `accelerators`: those of the host, or none where a
    variable hides them all (`hidden_by`).

    `devices`: logical ids in the user's order; None when nothing restricts them. `findings`: what of the variable
    could not be followed.
    """

    accelerators: Accelerators
    devices: tuple[int, ...] | None
    findings: tuple[Finding, ...] = ()


def see(accelerators: Accelerators, env: Mapping[str, str], given: str | None) -> Visible:
    """The accelerators as a process with these variables sees them. `given`, the text of the flag, wins over the
    variable.

    An empty list, or one that begins with a negative number, means that no device is wanted: the host then counts as
    one without accelerators. MIG instances of which nothing says what GPU they are part of restrict nothing, with the
    finding `mig_gpu_unknown`. Raises PlacementError `bad_visible_devices` as `visible_devices` does.
    """
    if given is None and accelerators.kind == "cuda":
        text = env.get("CUDA_VISIBLE_DEVICES", "")
        if unknown := _of_unknown_gpus(text, accelerators.of_kind("cuda")):
            return Visible(accelerators, None, (_gpu_unknown(unknown),))
    devices = visible_devices(accelerators, env, given)
    if devices != ():
        return Visible(accelerators, devices)
    names = KINDS[_kind(accelerators) or ""].variables
    hidden_by = next(name for name in names if name in env and _is_empty(env[name]))
    return Visible(Accelerators(hidden_by=hidden_by), None)


def visible_devices(accelerators: Accelerators, env: Mapping[str, str], given: str | None) -> tuple[int, ...] | None:
    """Logical ids in the user's order; None when nothing restricts them, empty when no device is wanted.

    - Every variable's list ends before the first negative number, as the runtimes have it; an empty one means no
      device.
    - Ascend: numbers only. Ones that the host lacks are passed on: which of them run is for the policy to say.
    - NVIDIA: numbers, UUIDs or unique beginnings of them, or names of MIG instances, which stand for their GPU (once).
    - AMD: ROCR_VISIBLE_DEVICES first, then HIP_VISIBLE_DEVICES (or CUDA_VISIBLE_DEVICES) counts within what that left.

    Raises PlacementError `bad_visible_devices` for words, ranges, repeats, an empty flag and, except for Ascend,
    devices that the host lacks.
    """
    kind = _kind(accelerators)
    chips = accelerators.of_kind(kind) if kind else ()
    if given is not None:
        if not given.strip():
            _refuse(_FLAG, given, "the list of devices is empty")
        return _devices(given, _FLAG, chips, strict=kind is not None and KINDS[kind].is_listed)
    if kind is None:
        return None
    first, *more = KINDS[kind].variables
    if more:
        return _of_layers(env, first, more, chips)
    return _of_variable(env, first, chips, strict=KINDS[kind].is_listed)


def _kind(accelerators: Accelerators) -> str | None:
    """The kind whose variable counts, also where its tool is there and cannot be understood."""
    named = (kind.name for kind in KINDS.values() if kind.tool)
    troubled = (name for name in named if any(KINDS[name].tool in error.summary for error in accelerators.errors))
    return accelerators.likely_kind or next(troubled, None)


def _is_empty(text: str) -> bool:
    """Return whether a variable says that no device is wanted."""
    first = text.partition(",")[0].strip()
    return text.strip() in ("", _NONE) or (first.startswith("-") and number(first[1:]) is not None)


def _of_variable(
    env: Mapping[str, str], name: str, chips: Sequence[Accelerator], *, strict: bool
) -> tuple[int, ...] | None:
    """The devices of one variable; None where it is not set."""
    text = env.get(name)
    if text is None:
        return None
    kept: list[str] = []
    for entry in () if _is_empty(text) else text.split(","):
        if entry.strip().startswith("-") and number(entry.strip()[1:]) is not None:
            break  # a number that is too large ends the runtimes' list too, but is rather a mistake, and refused
        kept.append(entry)
    return _devices(",".join(kept), name, chips, strict=strict) if kept else ()


def _of_layers(
    env: Mapping[str, str], first: str, more: Sequence[str], chips: Sequence[Accelerator]
) -> tuple[int, ...] | None:
    """The first variable hides devices from the whole runtime (ROCR); of the others that one counts which is set
    first (HIP, which also understands CUDA's variable), over those that are left.
    """
    shown = _of_variable(env, first, chips, strict=True)
    by_id = {chip.id: chip for chip in chips}
    left = chips if shown is None else [by_id[index] for index in shown]
    name = next((name for name in more if name in env), more[-1])
    counted = [Accelerator(chip.kind, place, chip.name, uuid=chip.uuid) for place, chip in enumerate(left)]
    places = _of_variable(env, name, counted, strict=True)
    return shown if places is None else tuple(left[place].id for place in places)


def _of_unknown_gpus(text: str, chips: Sequence[Accelerator]) -> list[str]:
    """MIG instances in a list whose names do not hold their GPU's, where the driver's list of instances was not to be
    had.
    """
    if len(chips) == 1 or any(chip.mig_instances for chip in chips):
        return []
    words = [word.strip() for word in text[:_MOST_TEXT].split(",")]
    return [word for word in words if word.startswith("MIG-") and not word.startswith("MIG-GPU-")]


def _gpu_unknown(words: Sequence[str]) -> Finding:
    named = quoted(", ".join(words))
    message = f"CUDA_VISIBLE_DEVICES: nothing says which GPU {named} is part of, so all GPUs are planned for"
    return Finding(
        "warning", "mig_gpu_unknown", message, "Name its GPU by number: --visible-devices; `nvidia-smi -L` lists them."
    )


def _devices(text: str, origin: str, chips: Sequence[Accelerator], *, strict: bool) -> tuple[int, ...]:
    """The list's entries as numbers of `chips`; `strict`: each must be one of them."""
    if len(text) > _MOST_TEXT:
        _refuse(origin, text, "the list of devices is too long")
    ids = {chip.id for chip in chips}
    found: dict[int, None] = {}
    for entry in text.split(","):
        word = entry.strip()
        device = _by_uuid(word, origin, text, chips) if word.startswith(("GPU-", "MIG-")) else number(word)
        if device is None:
            _refuse(origin, text, f"{quoted(word)} is no device number")
        if device in found and not word.startswith("MIG-"):
            _refuse(origin, text, f"device {device} is named twice")
        if strict and device not in ids:
            _refuse(origin, text, f"the host has no device {device}", ids)
        found[device] = None
    return tuple(found)


def _by_uuid(word: str, origin: str, text: str, chips: Sequence[Accelerator]) -> int:
    """The GPU whose UUID begins so. A MIG instance is named by its GPU (`MIG-GPU-<uuid>/...`) or by a UUID of its
    own, which the driver lists with its GPU; where there is one GPU it needs no list.
    """
    parents = [chip.id for chip in chips if any(one.lower().startswith(word.lower()) for one in chip.mig_instances)]
    if word.startswith("MIG-") and len(parents) == 1 and len(word) > len("MIG-"):
        return parents[0]
    wanted = word.removeprefix("MIG-").partition("/")[0].lower()
    if not wanted.startswith("gpu-") and len(chips) == 1:
        return chips[0].id
    matches = [chip.id for chip in chips if len(wanted) > len("gpu-") and chip.uuid.lower().startswith(wanted)]
    if len(matches) != 1:
        how = (
            f"fits {format_count(len(matches), 'device')}"
            if matches
            else "fits no device that is known here; name its GPU by number"
        )
        _refuse(origin, text, f"{quoted(word)} {how}")
    return matches[0]


def _refuse(origin: str, text: str, message: str, ids: set[int] | None = None) -> NoReturn:
    some = f" of {','.join(map(str, sorted(ids)))}" if ids else ", such as 3,1"
    mend = (
        "Name each device: 0,1,2,3."
        if origin == _FLAG
        else f"Mend {origin}; ranges are not understood by the vendors' runtimes either."
    )
    wanted = f"device numbers separated by commas{some}, each once"
    raise PlacementError(
        "bad_visible_devices", f"{origin}: {message}", seen=quoted(text), wanted=wanted, remedy=mend, param=origin
    )
