"""The fields of HTTP requests that every API has: one for each row of the table of sampling parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct, defstruct

from homenode.sampling import SETTINGS, setting_type


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
