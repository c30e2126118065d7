"""The YAML files of the field: settings by name, values as people write them there."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from homenode.errors import UserError
from homenode.options import EMPTY_SECRET, Option, is_empty_secret, options_of
from homenode.spelling import closest
from homenode.transfer.settings import TransferConfig

_LARGEST_FILE = 1 << 20
_FILE = "kv_transfer_config"  # this setting names the file and cannot stand in it


def read_settings_file(path: Path) -> dict[str, Any]:
    """The settings in a YAML file, by name, as values of `TransferConfig`.

    UserError for a file that cannot be read, is no YAML mapping, or has unknown keys or values of the wrong kind, all
    of them named at once.
    """
    import yaml  # for those who have such a file

    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise UserError(f"--kv-transfer-config {path} cannot be read: {error.strerror}", param=_FILE) from error
    if len(content) > _LARGEST_FILE:
        raise UserError(
            f"--kv-transfer-config {path} is larger than {_LARGEST_FILE} bytes; such files hold a few lines",
            param=_FILE,
        )
    try:
        values = yaml.safe_load(content)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise UserError(
            f"--kv-transfer-config {path} is not YAML: {' '.join(str(error).split())}", param=_FILE
        ) from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UserError(
            f"--kv-transfer-config {path} holds a {type(values).__name__}; wanted lines of `name: value`", param=_FILE
        )
    return typed_settings(values, str(path))


def typed_settings(values: Mapping[Any, Any], source: str) -> dict[str, Any]:
    """Values as YAML has them as those of the settings; null is left out. UserError naming every key that is unknown or
    has a bad value."""
    declared = {name: entry for name, (_, entry) in options_of(TransferConfig).items() if name != _FILE}
    hints = typing.get_type_hints(TransferConfig)
    typed: dict[str, Any] = {}
    wrong: list[str] = []
    for key, value in values.items():
        if key not in declared:
            near = closest(str(key), declared)
            wrong.append(f"{key!s:.60} is no setting of it" + (f" (did you mean {near[0]}?)" if near else ""))
        elif value is not None:
            try:
                typed[key] = _typed(value, hints[key], declared[key])
            except UserError as error:
                wrong.append(f"{key}: {error.message}")
    if wrong:
        raise UserError(
            f"--kv-transfer-config {source}: {'; '.join(wrong)}. There are {', '.join(declared)}", param=_FILE
        )
    return typed


def _typed(value: Any, hint: Any, declared: Option) -> Any:
    kinds = [kind for kind in (typing.get_args(hint) or (hint,)) if kind not in (type(None), Ellipsis)]
    if typing.get_origin(hint) is tuple:
        entries = value if isinstance(value, list) else [value]
        return tuple(port for entry in entries for port in _number(entry, int, declared))
    if not isinstance(value, str | int | float | bool):
        raise UserError(f"a {type(value).__name__} where one value is wanted")
    if kinds == [bool]:
        if not isinstance(value, bool):
            raise UserError(f"{value!r} is neither true nor false")
        return value
    if kinds == [str]:
        if declared.choices and value not in declared.choices:
            raise UserError(f"{value!r} is none of {', '.join(declared.choices)}")
        if is_empty_secret(declared, value):
            raise UserError(EMPTY_SECRET)
        return str(value)
    return _in_range(_number(value, kinds[0], declared), declared)


def _number(value: Any, kind: type, declared: Option) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UserError(f"a {type(value).__name__} where a number is wanted")
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 2e9 is a float in YAML
    if declared.parse is not None:
        if isinstance(value, float) and kind is int:
            raise UserError(f"{value!r} is no whole number")
        return declared.parse(value)
    try:
        return kind(value)
    except ValueError:
        raise UserError(f"{value!r} is no number") from None


def _in_range(number: Any, declared: Option) -> Any:
    low, high = declared.minimum, declared.maximum
    if (low is not None and number < low) or (high is not None and number > high):
        bounds = [f"{word} {bound:g}" for word, bound in (("at least", low), ("at most", high)) if bound is not None]
        raise UserError(f"{number} is out of range; it must be {' and '.join(bounds)}")
    return number
