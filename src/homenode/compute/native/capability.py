"""The instruction set level that the kernels use."""

from __future__ import annotations

from dataclasses import dataclass

from homenode import _native
from homenode.errors import UserError
from homenode.spelling import with_suggestion

LEVELS = tuple(level.name for level in _native.Level)


@dataclass(frozen=True, slots=True)
class LevelState:
    """One instruction set level: is it part of this build, what keeps it from being used here (None when nothing does),
    and why it is used only when asked for (None when it may be chosen)?
    """

    name: str
    built: bool
    lack: str | None
    drawback: str | None

    @property
    def available(self) -> bool:
        """Can kernels of this level run here?"""
        return self.lack is None


def level_states() -> tuple[LevelState, ...]:
    """All levels of all processors, the weakest of each kind first."""
    return tuple(
        LevelState(level.name, _native.level_built(level), _native.level_lack(level), _native.level_drawback(level))
        for level in _native.Level
    )


def available_levels() -> tuple[str, ...]:
    """The levels this machine and this build have, weakest first. They give the same tokens but for rounding."""
    return tuple(state.name for state in level_states() if state.available)


def choose_level(name: str | None) -> _native.Level:
    """The level called `name`, or the best there is for None. UserError for an unknown level or one that cannot run
    here.
    """
    if name is None:
        return _native.best_level()
    if name not in LEVELS:
        message = f"instruction set level {name!r} is unknown; choose one of {', '.join(LEVELS)}"
        raise UserError(with_suggestion(message, name, LEVELS), param="HOMENODE_ISA")
    level = _native.Level[name]
    if lack := _native.level_lack(level):
        raise UserError(
            f"instruction set level {name} cannot run here, it needs {lack}; there are {', '.join(available_levels())}",
            param="HOMENODE_ISA",
        )
    return level
