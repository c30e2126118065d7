"""Errors that crossed a thread or a process as a kind and a text, turned back into exceptions."""

from __future__ import annotations

from homenode import errors
from homenode.errors import HomenodeError, InternalError, OverloadedError, PlacementError, UserError


def named_error(kind: str | None, message: str, retry_after_s: float | None = None) -> HomenodeError:
    """The exception of the class in homenode.errors that `kind` names; InternalError for any other kind.

    A PlacementError comes back as a UserError: its text holds all of what it is made of.
    """
    found = getattr(errors, kind or "", None)
    if found is PlacementError:
        return UserError(message)
    if isinstance(found, type) and issubclass(found, OverloadedError):
        return found(message, retry_after_s=retry_after_s or 1.0)
    if isinstance(found, type) and issubclass(found, HomenodeError):
        return found(message)
    return InternalError(message)
