"""Which devices a process may use, from a flag or from the variable of the vendor. The order is the user's: rank 0 drives the first.

Sources: CUDA C++ Programming Guide, "CUDA Environment Variables"; ROCm documentation, "GPU isolation techniques"; CANN, ASCEND_RT_VISIBLE_DEVICES.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from homenode.errors import PlacementError
from homenode.host.topology.accelerators.cells import number, quoted
from homenode.host.topology.host import Accelerator, Accelerators

_FLAG = "--visible-devices"
_NONE = "NoDevFiles"  # what Slurm and CUDA's own tools set for: no device
_MOST_TEXT = 1 << 16


def visible_devices(accelerators: Accelerators, env: Mapping[str, str], given: str | None) -> tuple[int, ...] | None:
    """Logical ids in the user's order; None when nothing restricts them. `given`, the text of the flag, wins over the variable.

    - Ascend: numbers only. Ones that the host lacks are passed on: which of them run is for the policy to say. An empty variable is no restriction.
    - NVIDIA: numbers, UUIDs or unique beginnings of them, or names of MIG instances, which stand for their GPU (once). The variable's list ends
      before the first negative number, as in CUDA; an empty one means no device.
    - AMD: ROCR_VISIBLE_DEVICES first, then HIP_VISIBLE_DEVICES (or CUDA_VISIBLE_DEVICES) counts within what that left.

    Raises PlacementError `bad_visible_devices` for words, ranges, repeats, an empty flag and, except for Ascend, devices that the host lacks.
    """
    kind = accelerators.kind or ("npu" if any(error.code.startswith("npu_") for error in accelerators.errors) else None)
    chips = accelerators.of_kind(kind) if kind else ()
    if given is not None:
        if not given.strip():
            _refuse(_FLAG, given, "the list of devices is empty")
        return _devices(given, _FLAG, chips, strict=kind in ("cuda", "rocm"))
    if kind == "npu":
        text = env.get("ASCEND_RT_VISIBLE_DEVICES", "")
        return _devices(text, "ASCEND_RT_VISIBLE_DEVICES", (), strict=False) if text.strip() else None
    if kind == "cuda":
        return _cuda(env.get("CUDA_VISIBLE_DEVICES"), chips)
    return _rocm(env, chips) if kind == "rocm" else None


def _cuda(text: str | None, chips: Sequence[Accelerator]) -> tuple[int, ...] | None:
    if text is None:
        return None
    if text.strip() in ("", _NONE):
        return ()
    kept: list[str] = []
    for entry in text.split(","):
        if entry.strip().startswith("-") and number(entry.strip()[1:]) is not None:
            break  # as CUDA does; a number that is too large ends its list too, but is a mistake more often than a wish, and refused
        kept.append(entry)
    return _devices(",".join(kept), "CUDA_VISIBLE_DEVICES", chips, strict=True) if kept else ()


def _rocm(env: Mapping[str, str], chips: Sequence[Accelerator]) -> tuple[int, ...] | None:
    """ROCR hides devices from the whole runtime; HIP, which also understands CUDA's variable, counts over those that are left."""
    left: Sequence[Accelerator] = chips
    rocr = env.get("ROCR_VISIBLE_DEVICES")
    if rocr is not None:
        by_id = {chip.id: chip for chip in chips}
        left = (
            [by_id[index] for index in _devices(rocr, "ROCR_VISIBLE_DEVICES", chips, strict=True)]
            if rocr.strip()
            else []
        )
    name = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in env else "CUDA_VISIBLE_DEVICES"
    text = env.get(name)
    if text is None:
        return None if rocr is None else tuple(chip.id for chip in left)
    if text.strip() in ("", "-1", _NONE):
        return ()
    counted = [Accelerator(chip.kind, place, chip.name, uuid=chip.uuid) for place, chip in enumerate(left)]
    return tuple(left[place].id for place in _devices(text, name, counted, strict=True))


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
    """The GPU whose UUID begins so. A MIG instance is named by its GPU (`MIG-GPU-<uuid>/...`) or by a UUID of its own, clear with one GPU only."""
    wanted = word.removeprefix("MIG-").partition("/")[0].lower()
    if not wanted.startswith("gpu-") and len(chips) == 1:
        return chips[0].id
    matches = [chip.id for chip in chips if len(wanted) > len("gpu-") and chip.uuid.lower().startswith(wanted)]
    if len(matches) != 1:
        how = f"fits {len(matches)} devices" if matches else "fits no device that is known here; name its GPU by number"
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
