"""The models that `--models` names: TOML files with a table [models.NAME] for each, folders of models, and models.

    [models.coder]
    path = "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF:Q4_K_M"
    aliases = ["code"]
    pin = true
    kv-cache-memory = "2GiB"

Keys are `path`, `aliases`, `pin`, `on_demand`, `idle_timeout_s`, `nodes` and `cpus`, and the flags of all settings that
a model has for itself. What a table leaves open is as the flags beside --models say.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from homenode.cli.flags.settings import ConfigSetting, build, from_file, settings_of, with_settings
from homenode.cpuset import parse_cpu_list
from homenode.engine.config import EngineConfig
from homenode.errors import UserError
from homenode.model.tokenizer.config import TextConfig
from homenode.server.http.config import ServedModelConfig, ServerConfig
from homenode.server.models.model_entry import ModelEntry, check_endpoints, check_names
from homenode.server.models.picture_setup import check_encoder_cpus
from homenode.spelling import with_suggestion
from homenode.transfer.setup.settings import read_settings_file
from homenode.units import parse_seconds

OWN_KEYS = ("path", "aliases", "pin", "on_demand", "idle_timeout_s", "nodes", "cpus")
_LARGEST_FILE = 4 << 20
_MOST_MODELS = 10_000
_NOT_OF_TABLES = ("served_model_name",)  # it is `aliases` there
_SPLIT = re.compile(r"-(\d{5})-of-\d{5}$")
_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,200}")


@click.command()
@with_settings(EngineConfig, TextConfig, ServedModelConfig)
def _settings_of_models(**values: Any) -> None:
    """Take the settings of a model; never run."""


def usual_values() -> dict[str, Any]:
    """The values of all settings of a model where no flag says anything: variables, and defaults."""
    return dict(_settings_of_models.make_context("models", [], ignore_unknown_options=True).params)


def read_models(paths: Sequence[str], usual: Mapping[str, Any]) -> tuple[ModelEntry, ...]:
    """The models of all these paths, in their order. `usual`: values of settings by name, for what tables leave open.

    Raises UserError that names the file, the model and the key.
    """
    found = [entry for path in paths for entry in _read(path, usual)]
    if not found:
        raise UserError(f"--models {', '.join(paths)}: there is no model", param="models")
    if len(found) > _MOST_MODELS:
        raise UserError(f"--models: there are {len(found)} models; at most {_MOST_MODELS} are taken", param="models")
    check_names(found)
    check_endpoints(found)
    return tuple(found)


def _read(path: str, usual: Mapping[str, Any]) -> Iterator[ModelEntry]:
    place = Path(path).expanduser()
    if place.suffix == ".toml":
        yield from _of_file(place, usual)
    elif place.is_dir() and not _is_model(place):
        yield from _of_folder(place, usual)
    elif place.exists():
        yield _entry(_name_of(place), {"path": str(place)}, str(place), Path(), usual)
    else:
        raise UserError(
            f"--models {path}: there is no such file or folder; give a TOML file with tables [models.NAME], a folder "
            "of models, or a model",
            param="models",
        )


def _is_model(place: Path) -> bool:
    """Return whether a path is one model: a GGUF file, the first of several that belong together, or a folder with a
    configuration.
    """
    if place.is_dir():
        return (place / "config.json").is_file()
    split = _SPLIT.search(place.stem)
    return place.suffix == ".gguf" and place.is_file() and (split is None or int(split[1]) == 1)


def _name_of(place: Path) -> str:
    return place.name if place.is_dir() else _SPLIT.sub("", place.stem)


def _of_folder(folder: Path, usual: Mapping[str, Any]) -> Iterator[ModelEntry]:
    """Each folder and GGUF file in it is a model; what is neither is left out."""
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        raise UserError(f"--models {folder}: it cannot be read ({error.strerror})", param="models") from error
    for place in inside:
        files = [each for each in sorted(place.glob("*.gguf")) if _is_model(each)] if place.is_dir() else []
        if place.name.startswith("."):
            continue
        if _is_model(place):
            yield _entry(_name_of(place), {"path": str(place)}, str(folder), Path(), usual)
        elif len(files) == 1:
            yield _entry(place.name, {"path": str(files[0])}, str(folder), Path(), usual)
        else:
            for file in files:
                yield _entry(f"{place.name}/{_name_of(file)}", {"path": str(file)}, str(folder), Path(), usual)


def _of_file(file: Path, usual: Mapping[str, Any]) -> Iterator[ModelEntry]:
    for name, table in _tables(file).items():
        if not isinstance(table, dict):
            raise UserError(f"{file}: models.{name} is no table; write [models.{name}]", param="models")
        yield _entry(name, table, str(file), file.parent, usual)


def _tables(file: Path) -> Mapping[str, Any]:
    try:
        with file.open("rb") as opened:
            text = opened.read(_LARGEST_FILE + 1)
        if len(text) > _LARGEST_FILE:
            raise UserError(f"--models {file}: it has more than {_LARGEST_FILE} bytes", param="models")
        document = tomllib.loads(text.decode("utf-8"))
    except OSError as error:
        raise UserError(f"--models {file}: it cannot be read ({error.strerror})", param="models") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"--models {file}: it is not TOML: {error}", param="models") from None
    if unknown := [key for key in document if key != "models"]:
        text_of = f"{file}: `{unknown[0][:80]}` is no table of models; write [models.NAME]"
        raise UserError(with_suggestion(text_of, unknown[0], ("models",)), param="models")
    tables = document.get("models")
    if not isinstance(tables, dict) or not tables:
        raise UserError(f"{file}: there is no model; write a table [models.NAME] with `path` for each", param="models")
    return tables


def _entry(name: str, table: Mapping[str, Any], file: str, folder: Path, usual: Mapping[str, Any]) -> ModelEntry:
    """One model of a table. `folder`: where paths begin."""
    if not _NAME.fullmatch(name):
        raise UserError(f"{file}: the name {name[:80]!a} is not 1 to 200 printable characters", param="models")
    where = f"{file}: models.{name}"
    own: dict[str, Any] = {}
    values, given = dict(usual), set[str]()
    known = {setting.flag: setting for setting in _settings() if setting.name not in _NOT_OF_TABLES}
    for key, value in table.items():
        if (as_own := key.replace("-", "_")) in OWN_KEYS:
            own[as_own] = value
        elif (setting := known.get(key.replace("_", "-"))) is not None:
            values[setting.name] = _converted(where, key, value, setting)
            given.add(setting.name)
        else:
            raise _unknown(where, key, known)
    path = _text(where, "path", own.get("path"))
    if "kv_transfer_config" in given:
        values |= _of_transfer_file(where, values["kv_transfer_config"], given)
    aliases = _aliases(where, own.get("aliases", []))
    values["served_model_name"] = (name, *aliases)
    try:
        engine: EngineConfig = build(EngineConfig, values)
        text: TextConfig = build(TextConfig, values)
        served: ServedModelConfig = build(ServedModelConfig, values)
        if served.encoder_cpus:
            check_encoder_cpus(served.encoder_cpus)
    except UserError as error:
        raise UserError(f"{where}: {error.message}", param=error.param) from error
    pin, idle_s = _switch(where, "pin", own.get("pin", False)), _seconds(where, own.get("idle_timeout_s"))
    if pin and idle_s is not None:
        raise UserError(
            f"{where}: pin keeps the model loaded, and idle_timeout_s unloads it; give one of them", param="models"
        )
    named = dataclasses.replace(engine.model, model=_located(path, folder), vocabulary=text.tokenizer)
    return ModelEntry(
        name,
        aliases,
        dataclasses.replace(engine, model=named),
        text,
        served,
        pin=pin,
        on_demand=_switch(where, "on_demand", own.get("on_demand", True)),
        idle_timeout_s=idle_s,
        nodes=_numbers(where, "nodes", own.get("nodes", [])),
        cpus=_numbers(where, "cpus", own.get("cpus", [])),
    )


def _of_transfer_file(where: str, file: str, given: Collection[str]) -> dict[str, Any]:
    """Return the settings of a file for KV transfer that the table does not give itself."""
    try:
        found = read_settings_file(file).settings
    except UserError as error:
        raise UserError(f"{where}: {error.message}", param=error.param) from error
    return {name: value for name, value in found.items() if name not in given}


def _settings() -> Iterator[ConfigSetting]:
    for config in (EngineConfig, TextConfig, ServedModelConfig):
        yield from settings_of(config)


def _converted(where: str, key: str, value: Any, setting: ConfigSetting) -> Any:
    """The value of a setting, as its flag has it."""
    option = next(param for param in _settings_of_models.params if param.name == setting.name)
    with click.Context(_settings_of_models) as context:
        try:
            return option.type_cast_value(context, from_file(Path(where), key, value, setting))
        except click.BadParameter as error:
            text = error.message.removeprefix(f"{where}: {key} ").removeprefix(f"{where}: ")
            raise UserError(f"{where}: {key}: {text}", param=setting.name) from None


def _unknown(where: str, key: str, known: Mapping[str, ConfigSetting]) -> UserError:
    flag = key.replace("_", "-")
    if flag in {setting.flag for setting in settings_of(ServerConfig)}:
        if flag == "served-model-name":
            return UserError(f"{where}: {key}: give further names as `aliases`", param="models")
        return UserError(
            f"{where}: {key} is a setting of the server, not of one model; give it as a flag", param="models"
        )
    text = f"{where}: there is no setting {key[:80]}; keys are {', '.join(OWN_KEYS)} and the flags of settings"
    return UserError(with_suggestion(text, flag, (*OWN_KEYS, *known)), param="models")


def _text(where: str, key: str, value: Any) -> str:
    if value is None:
        raise UserError(f"{where}: {key} is missing: the file, the folder or the Hub id of the model", param="models")
    if not isinstance(value, str) or not value:
        raise UserError(f"{where}: {key} is {value!r}; wanted is a text in quotes", param="models")
    return value


def _located(path: str, folder: Path) -> str:
    """The path as it is from here; a Hub id, and the path of a model elsewhere, as it was written."""
    beside = folder / Path(path).expanduser()
    return str(beside) if beside.exists() else path


def _aliases(where: str, value: Any) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(each, str) and _NAME.fullmatch(each) for each in names):
        raise UserError(f"{where}: aliases is {value!r}; wanted is a list of names in quotes", param="models")
    return tuple(names)


def _switch(where: str, key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise UserError(f"{where}: {key} is {value!r}; wanted is true or false", param="models")
    return value


def _seconds(where: str, value: Any) -> float | None:
    if value is None:
        return None
    try:
        seconds = parse_seconds(value) if isinstance(value, str) else value
    except UserError as error:
        raise UserError(f"{where}: idle_timeout_s: {error.message}", param="models") from None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 1e9:
        raise UserError(f"{where}: idle_timeout_s is {value!r}; wanted are seconds, more than 0", param="models")
    return float(seconds)


def _numbers(where: str, key: str, value: Any) -> tuple[int, ...]:
    """Nodes or CPUs: a number, a list of numbers, or a text such as "0-3"."""
    given = [value] if isinstance(value, int) else value
    try:
        if isinstance(given, str):
            return tuple(sorted(set(parse_cpu_list(given))))
        if isinstance(given, list) and all(type(each) is int and 0 <= each < 65536 for each in given):
            return tuple(sorted(set(given)))
    except (UserError, ValueError):
        pass
    raise UserError(
        f'{where}: {key} is {value!r}; wanted is a list of numbers, or a text such as "0-3"', param="models"
    )
