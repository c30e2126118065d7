"""The entry of a table that a request's name means, and refusals of models that are not served, or not to this key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from homenode.server.http.failures import ApiError
from homenode.server.keys.caller import caller

M = TypeVar("M")


def named(table: Mapping[str, M], name: str, tag: str, known: Sequence[str]) -> M:
    """The entry of this name, behind which `tag` may stand. Raises ApiError 404, which tells the names `known`."""
    found = table.get(name) or table.get(name.removesuffix(tag))
    if found is None:
        raise unknown_model(name.removesuffix(tag), known)
    return found


def unknown_model(name: str, known: Sequence[str]) -> ApiError:
    """The error of a name that is not served, with those that are."""
    there = ", ".join(f"`{each}`" for each in known)
    text = f"`model` is `{name[:200]}`, which is not served here; there is {there}"
    return ApiError(404, text, param="model", code="model_not_found")


def check_key(name: str, names: Sequence[str]) -> None:
    """Raises ApiError 403 where the key of the request may not use the model `name`, which answers to `names`."""
    who = caller()
    if (allowed := who.models) and not set(names) & set(allowed):
        own = ", ".join(f"`{each}`" for each in allowed)
        text = f"the key `{who.name}` may not use the model `{name}`; it may use {own}"
        raise ApiError(403, text, param="model", code="model_not_allowed")
