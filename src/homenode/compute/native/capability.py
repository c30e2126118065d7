"""Which instruction set level the kernels use."""

from __future__ import annotations

from homenode import _native
from homenode.errors import UserError

LEVELS = ("scalar", "avx2", "avx512", "avx512bf16")


def available_levels() -> tuple[str, ...]:
    """The levels this machine and this build have, weakest first. They give the same tokens but for rounding."""
    return tuple(name for name in LEVELS if _native.level_available(_level(name)))


def choose_level(name: str | None) -> _native.Level:
    """The level called `name`, or the best there is for None. UserError for an unknown level or one that cannot run here."""
    if name is None:
        return _native.best_level()
    if name not in LEVELS:
        raise UserError(f"instruction set level {name!r} is unknown; choose one of {', '.join(LEVELS)}", param="HOMENODE_ISA")
    if name not in available_levels():
        raise UserError(
            f"instruction set level {name} cannot run here: this processor and this build have {', '.join(available_levels())}",
            param="HOMENODE_ISA",
        )
    return _level(name)


def _level(name: str) -> _native.Level:
    levels: dict[str, _native.Level] = {level.name: level for level in _native.Level}
    return levels[name]
