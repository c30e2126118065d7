"""Flags, variables and TOML keys made from declared settings (homenode.options), and settings rebuilt from what the
user gave.

A value comes from, in this order: the flag, the variable `HOMENODE_<FLAG>`, the file given by `--config`, the default.
Where each came from is kept, so that `--show-config` can tell.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from homenode.cli.flags.service_links import left_aside
from homenode.cli.flags.suggestions import SuggestingChoice
from homenode.cli.output.report import TOLD, VARIABLE_SETTINGS, print_note, set_by
from homenode.equivalents.equivalent import ModelName
from homenode.equivalents.table import known_flags
from homenode.equivalents.translation import OwnFlag, flag_values, translate, words_of
from homenode.errors import UserError
from homenode.host.plan.numa.settings import NumaSettings
from homenode.host.plan.variables import value_of_variable
from homenode.options import EMPTY_SECRET, Option, is_empty_secret, options_of
from homenode.spelling import with_suggestion

_SOURCES = {
    click.core.ParameterSource.COMMANDLINE: "flag",
    click.core.ParameterSource.ENVIRONMENT: "environment",
    click.core.ParameterSource.DEFAULT_MAP: "config file",
    click.core.ParameterSource.DEFAULT: "default",
}

_TOML_KINDS: dict[type, tuple[type, ...]] = {str: (int,), int: (int,), float: (int, float), bool: (bool,)}
_TOML_WORDS = {
    str: "a text in quotes",
    int: "a whole number, or a text in quotes as the flag takes it",
    float: "a number, or a text in quotes as the flag takes it",
    bool: "true or false",
}

OTHER_SOURCES = "homenode.sources"  # in a context's meta: where a setting came from, by name, if from none of the above
_TOLD = "homenode.told"  # in a context's meta: lines that were written
NUMA_SETTINGS = tuple(options_of(NumaSettings))  # for every command that computes


@dataclasses.dataclass(frozen=True)
class ConfigSetting:
    """One declared setting: its name (`max_num_seqs`), where it lives in the config, its type and its Option."""

    name: str
    path: tuple[str, ...]
    kind: type
    many: bool
    default: Any
    option: Option

    @property
    def flag(self) -> str:
        """The flag without dashes in front: `max-num-seqs`."""
        return (self.option.flag or self.name).lstrip("-").replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return "HOMENODE_" + self.flag.replace("-", "_").upper()


def settings_of(config: type[Any], path: tuple[str, ...] = ()) -> Iterator[ConfigSetting]:
    """Every setting of a config class and of the config classes it is composed of, in order."""
    hints = typing.get_type_hints(config)
    declared = options_of(config)
    for field in dataclasses.fields(config):
        if field.name in declared:
            kind, many = _kind(hints[field.name])
            default = field.default if field.default is not dataclasses.MISSING else _made(field)
            yield ConfigSetting(field.name, (*path, field.name), kind, many, default, declared[field.name][1])
        elif dataclasses.is_dataclass(hints[field.name]):
            yield from settings_of(typing.cast(type[Any], hints[field.name]), (*path, field.name))


def _made(field: dataclasses.Field[Any]) -> Any:
    return None if field.default_factory is dataclasses.MISSING else field.default_factory()


def _kind(hint: Any) -> tuple[type, bool]:
    """The type of one value, and whether there may be several: `int | None` -> (int, False), `tuple[str, ...]` -> (str,
    True)."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(h for h in typing.get_args(hint) if h is not type(None))
    if typing.get_origin(hint) in (tuple, list):
        return typing.get_args(hint)[0], True
    return hint, False


class _Value(click.ParamType[Any]):
    """Turns the text of a flag, a variable or a TOML value into a setting's value."""

    def __init__(self, setting: ConfigSetting) -> None:
        self.setting = setting
        self.name = setting.option.metavar or {int: "N", float: "X"}.get(setting.kind, "TEXT")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        option = self.setting.option
        try:
            converted = option.parse(value) if option.parse else self.setting.kind(value)
        except UserError as error:
            self.fail(error.message, param, ctx)
        except (ValueError, TypeError):
            self.fail(f"{value!r} is not {'a whole number' if self.setting.kind is int else 'a number'}", param, ctx)
        problem = out_of_range(converted, option)
        if problem:
            self.fail(problem, param, ctx)
        return converted

    def split_envvar_value(self, rv: str) -> list[str]:
        """One text where the setting's own parser knows how to cut it, as it does for the flag; else words."""
        return [rv] if self.setting.option.parse else rv.split()


class SettingOption(click.Option):
    """An option that may be set by a variable or a file, and says by which where its value is wrong.

    An empty variable is a value where the setting is secret: click takes every empty variable for one that is not set.
    A variable that a cluster wrote for a service of that name is no value, which one line tells.
    """

    def __init__(self, *args: Any, secret: bool = False, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self.secret = secret

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        found = super().resolve_envvar_value(ctx)
        variable: str | None = str(self.envvar)
        if found is None and self.secret:
            found = os.environ.get(str(self.envvar))
        if found is None:
            variable, found = variable_setting(ctx, self.name)
        line = None if found is None else left_aside(str(variable), found, self.opts[0])
        if line is None:
            return found
        if line not in ctx.meta.setdefault(_TOLD, []):  # click asks more than once
            ctx.meta[_TOLD].append(line)
            print_note(line)
        return None

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        try:
            return super().process_value(ctx, value)
        except click.BadParameter as error:
            where = set_by(self, ctx)
            if where is None:
                raise
            message = f"{error.message} (set by {where})"
            raise click.BadParameter(message, error.ctx, error.param, error.param_hint) from error


def variable_setting(ctx: click.Context, name: str | None) -> tuple[str | None, str | None]:
    """The variable of another program that says a setting, and the value; None where none does."""
    said: tuple[str | None, str | None] = ctx.meta.get(VARIABLE_SETTINGS, {}).get(name, (None, None))
    return said


def out_of_range(value: Any, option: Option) -> str | None:
    """Return what is wrong with a value, in words; None when it is in range."""
    if is_empty_secret(option, value):
        return EMPTY_SECRET
    if option.choices and value not in option.choices:
        return with_suggestion(f"{value!r} is none of {', '.join(option.choices)}", str(value), option.choices)
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value != value:
            return "not a number"
        if option.minimum is not None and value < option.minimum:
            return f"{value} is too small; at least {option.minimum:g}"
        if option.maximum is not None and value > option.maximum:
            return f"{value} is too large; at most {option.maximum:g}"
    return None


def with_settings(*configs: type[Any]) -> Callable[[Any], Any]:
    """Decorator for a click command: adds the flags of these config classes and `--config FILE`."""

    def decorate(command: Any) -> Any:
        command = click.option(
            "--config",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            is_eager=True,
            expose_value=False,
            callback=_read_config(configs),
            help="TOML file with settings; keys are the flags' names. Flags and HOMENODE_... variables win over it.",
        )(command)
        for config in reversed(configs):
            for setting in reversed(list(settings_of(config))):
                command = _click_option(setting)(command)
        return command

    return decorate


def with_some_settings(config: type[Any], *names: str) -> Callable[[Any], Any]:
    """Decorator for a click command that takes only these settings of a config class (flags and variables, no file)."""
    by_name = {setting.name: setting for setting in settings_of(config)}

    def decorate(command: Any) -> Any:
        for name in reversed(names):
            command = _click_option(by_name[name])(command)
        return command

    return decorate


def _click_option(setting: ConfigSetting) -> Callable[[Any], Any]:
    common: dict[str, Any] = {
        "help": _help(setting),
        "envvar": setting.variable,
        "default": setting.default,
        "show_envvar": False,
        "cls": SettingOption,
    }
    if setting.kind is bool:
        return click.option(f"--{setting.flag}/--no-{setting.flag}", setting.name, **common)
    kind = (
        SuggestingChoice(setting.option.choices)
        if setting.option.choices and not setting.option.parse
        else _Value(setting)
    )
    secret = setting.option.secret
    return click.option(f"--{setting.flag}", setting.name, type=kind, multiple=setting.many, secret=secret, **common)


def _help(setting: ConfigSetting) -> str:
    default = setting.default
    if setting.kind is bool:
        shown = "on" if default else "off"
    else:
        shown = "" if default in (None, (), "") or setting.option.secret else str(default)
    return setting.option.help + (f" [default: {shown}]" if shown else "")


def _read_config(configs: tuple[type[Any], ...]) -> Callable[[click.Context, click.Parameter, Path | None], None]:
    def callback(ctx: click.Context, param: click.Parameter, file: Path | None) -> None:
        if file is None:
            return
        by_flag = {s.flag: s for config in configs for s in settings_of(config)}
        own = _own_flags(by_flag)
        arguments = {p.name for p in ctx.command.params if isinstance(p, click.Argument)}
        try:
            values = tomllib.loads(file.read_text(encoding="utf-8"))
        except (ValueError, OSError) as error:
            raise click.BadParameter(f"{file} is not TOML: {error}") from error
        values = _translated(ctx, file, values, own)
        keys = {key: key.replace("_", "-") for key in values}
        unknown = [key for key, flag in keys.items() if flag not in by_flag and flag not in arguments]
        if unknown:
            message = (
                f"{file} has settings that do not exist: {', '.join(unknown)}; keys are the flags' names without "
                "dashes in front"
            )
            raise click.BadParameter(with_suggestion(message, unknown[0], by_flag))
        ctx.default_map = {}
        for key, value in values.items():
            setting = by_flag.get(keys[key])
            ctx.default_map[setting.name if setting else keys[key]] = from_file(file, key, value, setting)

    return callback


def _own_flags(by_flag: Mapping[str, ConfigSetting]) -> dict[str, OwnFlag]:
    found: dict[str, OwnFlag] = {}
    for flag, setting in by_flag.items():
        names = (f"--{flag}", f"--no-{flag}") if setting.kind is bool else (f"--{flag}",)
        found |= dict.fromkeys(names, OwnFlag(setting.kind is not bool, setting.many))
    return found


def _translated(ctx: click.Context, file: Path, values: dict[str, Any], own: Mapping[str, OwnFlag]) -> dict[str, Any]:
    """The values with the names of other programs turned into ours; what has no effect is told."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        flag = f"--{key.replace('_', '-')}"
        if flag in own or known_flags().get(flag) is None or isinstance(known_flags()[flag].row.meaning, ModelName):
            found[key] = value
            continue
        made = translate(words_of(flag, value), own, takes_model=False)
        if made.refused:
            raise click.BadParameter(f"{file}: {'; '.join(made.refused)}")
        ctx.meta.setdefault(TOLD, []).extend(f"{file}: {line}" for line in made.told)
        found |= {
            ours[2:]: {"true": True, "false": False}.get(text, text) for ours, text in flag_values(made.words, own)
        }
    return found


def from_file(file: Path, key: str, value: Any, setting: ConfigSetting | None) -> Any:
    """A TOML value as the parameter takes it: what a flag may be given several times is a list, or one text cut as the
    flag's is.

    `setting` is None for an argument of the command, which is a text. Raises click.BadParameter for a value of another
    kind than the setting's.
    """
    kind = setting.kind if setting else str
    if setting is not None and setting.many:
        values = value if isinstance(value, list) else [value]
        if not values:
            raise click.BadParameter(f"{file}: {key} is an empty list; leave it out for the default")
        return [_one_from_file(file, key, each, kind) for each in values]
    return _one_from_file(file, key, value, kind)


def _one_from_file(file: Path, key: str, value: Any, kind: type) -> Any:
    if isinstance(value, str) or ((kind is bool) == isinstance(value, bool) and isinstance(value, _TOML_KINDS[kind])):
        return value
    raise click.BadParameter(f"{file}: {key} is {value!r}; wanted is {_TOML_WORDS[kind]}")


def build(config: type[Any], values: Mapping[str, Any], path: tuple[str, ...] = ()) -> Any:
    """A config object from the values click collected (by setting name)."""
    hints = typing.get_type_hints(config)
    declared = options_of(config)
    given: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        if field.name in declared:
            if field.name in values:
                given[field.name] = _flat(values[field.name])
        elif dataclasses.is_dataclass(hints[field.name]):
            given[field.name] = build(typing.cast(type[Any], hints[field.name]), values, (*path, field.name))
        elif field.name in values:
            given[field.name] = values[field.name]
    return config(**given)


def _flat(value: Any) -> Any:
    """Several occurrences of a flag that each hold several values (`--name a,b --name c`) make one tuple."""
    if isinstance(value, tuple) and any(isinstance(part, tuple) for part in value):
        return tuple(item for part in value for item in (part if isinstance(part, tuple) else (part,)))
    return value


def source_of(ctx: click.Context, name: str) -> str:
    """Return where a parameter's value came from, in words."""
    source = ctx.get_parameter_source(name) or click.core.ParameterSource.DEFAULT
    return _SOURCES.get(source, source.name.lower())


def _shown(value: Any) -> str:
    """A value as a flag takes it."""
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return "" if value is None else str(value)


def _variable_of_others(ctx: click.Context, setting: ConfigSetting) -> str | None:
    variable = variable_setting(ctx, setting.name)[0]
    from_environment = ctx.get_parameter_source(setting.name) is click.core.ParameterSource.ENVIRONMENT
    if variable is None or not from_environment or os.environ.get(setting.variable):
        return None
    return f"environment {variable}"


def given_settings(ctx: click.Context) -> frozenset[str]:
    """The names of the settings that a flag, a variable or a file gave, be it their default value."""
    default = click.core.ParameterSource.DEFAULT
    return frozenset(name for name in ctx.params if ctx.get_parameter_source(name) is not default)


def shown_settings(ctx: click.Context, *configs: type[Any]) -> list[tuple[str, str, str]]:
    """(flag, value, where it came from) of every setting; secrets are hidden."""
    rows = []
    for config in configs:
        for setting in settings_of(config):
            value = _flat(ctx.params.get(setting.name))
            text = "(hidden)" if setting.option.secret and value else _shown(value)
            told = ctx.meta.get(OTHER_SOURCES, {}).get(setting.name) or _variable_of_others(ctx, setting)
            is_default = ctx.get_parameter_source(setting.name) is click.core.ParameterSource.DEFAULT
            if told is None and is_default and (found := value_of_variable(f"--{setting.flag}", os.environ)):
                text, told = found
            rows.append((f"--{setting.flag}", text, told or source_of(ctx, setting.name)))
    return rows
