"""The switch of the Ascend CPU binding: `enable_cpu_binding` in vLLM's `--additional-config`, and
`--no-cpu-binding`."""

from __future__ import annotations

import json

from homenode.errors import PlacementError

SWITCH = "enable_cpu_binding"
_LONGEST = 1 << 20  # characters


def cpu_binding_enabled(additional_config: str | None, flag: bool | None) -> bool:
    """Return whether the binding is wanted; it is unless somebody says no. `flag`: `--cpu-binding` or
    `--no-cpu-binding`, None when neither is given.

    Raises PlacementError bad_additional_config: no JSON object, a switch that is not true or false (the text "false"
    and 0 are not), or one that contradicts the flag. All other keys belong to the engine and are not looked at.
    """
    configured = None if additional_config is None else _switch(additional_config)
    if None not in (configured, flag) and configured != flag:
        raise _error(
            f"{_name(flag)} contradicts {SWITCH} in --additional-config",
            f"{SWITCH}: {json.dumps(configured)} and {_name(flag)}",
            "one of the two, or both alike",
            f"Leave out {_name(flag)}, or take {SWITCH} out of --additional-config.",
        )
    return flag if flag is not None else configured is not False


def _switch(text: str) -> bool | None:
    """The value of the switch in a JSON object; None where it is not there."""
    remedy = f'Write a JSON object such as {{"{SWITCH}": false}}.'
    seen = repr(text if len(text) <= 80 else text[:77] + "...")
    try:
        pairs = json.loads(text[: _LONGEST + 1], object_pairs_hook=_Pairs) if len(text) <= _LONGEST else None
    except (ValueError, RecursionError):
        pairs = None
    if not isinstance(pairs, _Pairs):
        raise _error("--additional-config is no JSON object", seen, "a JSON object of at most 1 MiB", remedy)
    values = [value for key, value in pairs if key == SWITCH]
    if len(values) > 1:
        raise _error(f"--additional-config has {SWITCH} twice", seen, "once at most", remedy)
    if values and not isinstance(values[0], bool):
        raise _error(
            f"{SWITCH} in --additional-config must be true or false, without quotes",
            json.dumps(values[0])[:80],
            "true or false",
            remedy,
        )
    return bool(values[0]) if values else None


class _Pairs(list[tuple[str, object]]):
    """A JSON object as it is written, so that a key that comes twice is seen."""


def _name(flag: bool | None) -> str:
    return "--cpu-binding" if flag else "--no-cpu-binding"


def _error(message: str, seen: str, wanted: str, remedy: str) -> PlacementError:
    return PlacementError(
        "bad_additional_config", message, seen=seen, wanted=wanted, remedy=remedy, param="--additional-config"
    )
