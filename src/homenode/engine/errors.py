"""Errors that crossed a thread or a process as a kind and a text, turned back into exceptions."""

from __future__ import annotations

from homenode import errors
from homenode.engine.step import Step
from homenode.errors import HomenodeError, HostError, InternalError, OverloadedError, PlacementError, UserError
from homenode.units import format_count


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


class StepError(InternalError):
    """A step could not be computed. It and every step submitted after it are lost; the executor is ready for new ones.

    `kind` is the class name of the cause. `fatal`: no later step can succeed either.
    """

    def __init__(self, message: str, *, kind: str, fatal: bool = False) -> None:
        super().__init__(message, kind=kind, fatal=fatal)
        self.kind = kind
        self.fatal = fatal


class StepsLostError(StepError):
    """A worker ended, or was silent for too long. All steps in flight are lost, and with them every sequence on every
    worker; what fails is not the requests' fault, so they may be computed again. The executor replaces the worker by
    itself: see `Executor.serving`.
    """

    def __init__(self, message: str, *, fatal: bool = False) -> None:
        """`fatal`: it will not be replaced, as it was lost too often."""
        super().__init__(message, kind="worker_lost", fatal=fatal)


def step_error(step: Step, error: Exception) -> StepError:
    """The failure of a step, in words: what was computed, what went wrong, what may help."""
    kind = type(error).__name__
    text = (
        f"step {step.number} ({format_count(len(step.items), 'sequence')}, "
        f"{format_count(step.num_tokens, 'token')}) failed with {kind}"
    )
    if str(error):
        text += f": {error}"
    if isinstance(error, MemoryError):
        text += "; lower --max-num-batched-tokens or --kv-cache-memory if this happens often"
    return StepError(text, kind=kind, fatal=isinstance(error, HostError))
