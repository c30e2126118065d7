"""Keyword arguments of a Python program, by the names that other programs have for them, as settings of ours. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from homenode.equivalents.equivalent import ModelName
from homenode.equivalents.table import known_flags, written_as
from homenode.equivalents.translation import OwnFlag, flag_values, translate, words_of
from homenode.errors import UserError


@dataclass
class TranslatedSettings:
    """Settings by our names; the model, if one of them names it; lines about what has no effect."""

    settings: dict[str, Any] = field(default_factory=dict)
    model: str | None = None
    told: list[str] = field(default_factory=list)


def translate_keywords(given: Mapping[str, Any], own: Mapping[str, OwnFlag]) -> TranslatedSettings:
    """Settings by the names of other programs as ours; what nobody knows is left as it is. Raises UserError for what is
    not taken. `own`: the flags of our settings."""
    found = TranslatedSettings()
    for name, value in given.items():
        flag = "--" + name.replace("_", "-")
        known = known_flags().get(written_as(flag, own))
        if known is None or (flag in own and (not isinstance(value, str) or known.meaning(value) is None)):
            _set(found, name, name, value)
        elif isinstance(known.row.meaning, ModelName):
            found.model = str(value)
        else:
            _take(found, name, value, own)
    return found


def _take(found: TranslatedSettings, name: str, value: Any, own: Mapping[str, OwnFlag]) -> None:
    made = translate(words_of("--" + name.replace("_", "-"), value), own, takes_model=False)
    if made.refused:
        raise UserError("; ".join(made.refused), param=name)
    found.told += made.told
    for ours, text in flag_values(made.words, own):
        setting = ours[2:].replace("-", "_")
        taken = {"true": True, "false": False}.get(text, text) if not own[ours].takes_value else text
        _set(found, setting, name, value if taken == str(value) else taken)


def _set(found: TranslatedSettings, setting: str, name: str, value: Any) -> None:
    known = found.settings.setdefault(setting, value)
    if known is not value and known != value:
        raise UserError(f"{name} is {setting} here, which is given with another value; leave one out", param=name)
