"""The instruction set levels of the native core, for `homenode doctor`: built or not, running here or not, and the one
that would be chosen."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from homenode.errors import HostError, UserError
from homenode.host.topology.finding import Finding

if TYPE_CHECKING:
    from homenode.compute.native import LevelState


@dataclass(frozen=True, slots=True)
class NativeLevels:
    """`chosen`: the level an engine started here would compute at; None when HOMENODE_ISA asks for an impossible one,
    as `refusal` says."""

    states: tuple[LevelState, ...]
    chosen: str | None
    refusal: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: `{"chosen": name or null, "levels": [{"name", "built", "lack", "drawback"}, ...]}`."""
        return {"chosen": self.chosen, "levels": [asdict(state) for state in self.states]}

    def findings(self) -> list[Finding]:
        """An error when no engine could start with what HOMENODE_ISA says."""
        if self.refusal is None:
            return []
        names = ", ".join(state.name for state in self.states if state.available)
        return [Finding("error", "isa_impossible", self.refusal, f"Unset HOMENODE_ISA or set it to one of {names}.")]

    def lines(self) -> list[str]:
        """A line for each level that is built, and one for the others."""
        shown = [f"{state.name:11}{self._standing(state)}" for state in self.states if state.built]
        others = ", ".join(state.name for state in self.states if not state.built)
        return [*shown, *([f"not built: {others}"] if others else [])]

    def _standing(self, state: LevelState) -> str:
        if state.name == self.chosen:
            return "chosen"
        if not state.available:
            return f"needs {state.lack}"
        return f"runs here when asked for: {state.drawback}" if state.drawback else "runs here"


def native_levels() -> NativeLevels | None:
    """Return what the native core says of itself; None where it is not installed."""
    try:
        from homenode.compute.native import choose_level, level_states
    except HostError:
        return None
    try:
        return NativeLevels(level_states(), choose_level(os.environ.get("HOMENODE_ISA") or None).name)
    except UserError as refusal:
        return NativeLevels(level_states(), None, str(refusal))
