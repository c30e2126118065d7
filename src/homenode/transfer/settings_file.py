"""The files of LMCache and the text of vLLM's --kv-transfer-config: settings by name, values as people write them
there. What they name besides is told, and refused where it cannot be."""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from homenode.equivalents.equivalent import Meaning, NoEffect, NotOffered, Taken
from homenode.equivalents.kv_transfer import CONNECTOR_KEYS, meaning_of_key, role_of_connector
from homenode.errors import UserError
from homenode.options import EMPTY_SECRET, Option, is_empty_secret, options_of
from homenode.spelling import closest
from homenode.transfer.settings import TransferConfig

_LARGEST_FILE = 1 << 20
_AS_JSON = "as JSON"
_FILE = "kv_transfer_config"  # this setting names the file and cannot stand in it


@dataclass(frozen=True)
class TransferFile:
    """What a file says: settings by name, as values of `TransferConfig`, and lines about what has no effect here.
    `source`: the file's path, or the text that stood in its place."""

    settings: Mapping[str, Any]
    told: Sequence[str]
    source: str


def read_settings_file(given: str | Path | Mapping[str, Any]) -> TransferFile:
    """The settings in a YAML file, in a text of JSON as vLLM takes it, or in such a mapping.

    UserError for a file that cannot be read, is no YAML mapping, or has unknown keys or values of the wrong kind, all
    of them named at once.
    """
    if isinstance(given, Mapping):
        return _settings_of(dict(given), _AS_JSON, json.dumps(dict(given), default=str))
    text = str(given)
    if text.lstrip().startswith(("{", "[")):
        return _settings_of(_parse_json(text), _AS_JSON, text)
    return _settings_of(_read_yaml(Path(text)), text, text)


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"--kv-transfer-config is neither a file nor JSON: {error}; seen: {text[:60]!r}", param=_FILE
        ) from error


def _read_yaml(path: Path) -> Any:
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
        return yaml.safe_load(content)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise UserError(
            f"--kv-transfer-config {path} is not YAML: {' '.join(str(error).split())}", param=_FILE
        ) from error


def _settings_of(values: Any, source: str, text: str) -> TransferFile:
    if values is None:
        return TransferFile({}, (), text)
    if not isinstance(values, dict):
        raise UserError(
            f"--kv-transfer-config {source} holds a {type(values).__name__}; wanted lines of `name: value`", param=_FILE
        )
    return TransferFile(*typed_settings(values, source), text)


def typed_settings(values: Mapping[Any, Any], source: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Values as YAML has them as those of the settings, and lines about what has no effect; null is left out.

    UserError naming every key that is unknown, has a bad value, or says something else than another key.
    """
    reader = _SettingsReader(values)
    for key, value in values.items():
        if value is not None:
            reader.add(str(key), value)
    if reader.wrong:
        raise UserError(
            f"--kv-transfer-config {source}: {'; '.join(reader.wrong)}. There are {', '.join(reader.declared)}",
            param=_FILE,
        )
    return reader.typed, tuple(reader.told)


class _SettingsReader:
    """Adds keys of a file to typed settings, one after the other."""

    def __init__(self, values: Mapping[Any, Any]) -> None:
        self.declared = {name: entry for name, (_, entry) in options_of(TransferConfig).items() if name != _FILE}
        self.typed: dict[str, Any] = {}
        self.told: list[str] = []
        self.wrong: list[str] = []
        self._hints = typing.get_type_hints(TransferConfig)
        self._said_by: dict[str, str] = {}
        self._connector = values.get("kv_connector")
        self._of_vllm = "kv_connector" in values or "kv_role" in values

    def add(self, key: str, value: Any) -> None:
        """Add one key."""
        match self._meaning(key, value):
            case None:
                near = closest(key, self.declared)
                self.wrong.append(f"{key:.60} is no setting of it" + (f" (did you mean {near[0]}?)" if near else ""))
            case NotOffered(instead):
                shown = f" {value:.60}" if isinstance(value, str) else ""
                self.wrong.append(f"{key}{shown} is not taken: {instead}")
            case NoEffect(why):
                self.told.append(f"{key} of --kv-transfer-config is ignored: {why}")
            case Taken(name, said):
                self._set(key, name, value if said is None else said)

    def _meaning(self, key: str, value: Any) -> Meaning | None:
        if key in self.declared:
            return Taken(key)
        if key == "kv_role":
            return role_of_connector(self._connector, value)
        return (CONNECTOR_KEYS.get(key) if self._of_vllm else None) or meaning_of_key(key)

    def _set(self, key: str, name: str, value: Any) -> None:
        try:
            setting = _typed(value, self._hints[name], self.declared[name])
        except UserError as error:
            self.wrong.append(f"{key}: {error.message}")
            return
        if name in self.typed and self.typed[name] != setting:
            self.wrong.append(f"{self._said_by[name]} and {key} contradict each other: both are {name}; leave one out")
        self.typed[name], self._said_by[name] = setting, key


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
