"""The fields of HTTP requests that every API has: one for each row of the table of sampling parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct, defstruct

from homenode.sampling import SETTINGS, setting_type
from homenode.server.http.failures import ApiError


def setting_field_type(name: str) -> Any:
    """The type of the field for a row of the table: its number within the range that HTTP APIs take."""
    setting = SETTINGS[name]
    low, high = setting.api_range
    return Annotated[setting_type(name), Meta(ge=low, le=high, description=setting.doc)]


if TYPE_CHECKING:

    class SettingFields(Struct, forbid_unknown_fields=True, kw_only=True):
        """A field for each row of the table of sampling parameters, None where it is left open."""

else:
    SettingFields = defstruct(
        "SettingFields",
        [(name, setting_field_type(name) | None, None) for name in SETTINGS],
        forbid_unknown_fields=True,
        kw_only=True,
    )


def given_settings(body: SettingFields) -> dict[str, Any]:
    """The sampling parameters that a request has a value for, as `SamplingParams` takes them."""
    return {
        name: setting.clamped(value) for name, setting in SETTINGS.items() if (value := getattr(body, name)) is not None
    }


# The samplers that a request may name in `samplers`, by the names that llama.cpp has for them, and what is off without
# each.
_OF_SAMPLERS: dict[str, tuple[str, ...]] = {
    "penalties": ("repetition_penalty", "frequency_penalty", "presence_penalty"),
    "dry": ("dry_multiplier",),
    "temperature": ("temperature", "dynatemp_range"),
    "top_n_sigma": ("top_n_sigma",),
    "top_k": ("top_k",),
    "typ_p": ("typical_p",),
    "top_p": ("top_p",),
    "min_p": ("min_p",),
    "xtc": ("xtc_probability",),
}
_OTHER_NAMES = {"typical_p": "typ_p", "typical": "typ_p", "nucleus": "top_p", "temp": "temperature"}
_OF_LETTERS = {
    "e": "penalties", "d": "dry", "t": "temperature", "s": "top_n_sigma", "k": "top_k", "y": "typ_p", "p": "top_p",
    "m": "min_p", "x": "xtc", "i": "infill",
}  # fmt: skip
SAMPLER_LETTERS = "".join(_OF_LETTERS)
_ALWAYS_ON = frozenset(("penalties", "dry", "temperature"))
_WITHOUT_EFFECT = frozenset(("infill",))  # known, and nothing that changes a draw here
SAMPLER_NAMES = tuple(sorted(_OF_SAMPLERS.keys() | _OTHER_NAMES.keys() | _WITHOUT_EFFECT))


def switched_off(samplers: Sequence[str] | str | None) -> dict[str, Any]:
    """The sampling parameters of the samplers that are not among those a request names, with the values that change
    nothing. Penalties, DRY and the temperature stay, as they are no choice among tokens. The order of the samplers is
    always that of the table. Raises ApiError 400 for a name that is none.
    """
    if not samplers:
        return {}
    if isinstance(samplers, str):
        samplers = [_OF_LETTERS.get(letter, letter) for letter in samplers]
    named = {_OTHER_NAMES.get(name, name) for name in samplers}
    for name in samplers:
        if name not in SAMPLER_NAMES:
            text = f"`samplers` has `{name[:64]}`; there are {', '.join(_OF_SAMPLERS)}"
            raise ApiError(400, text, param="samplers", code="invalid_value")
    off = [each for name, each in _OF_SAMPLERS.items() if name not in named and name not in _ALWAYS_ON]
    return {name: setting_type(name)(SETTINGS[name].off) for names in off for name in names}
