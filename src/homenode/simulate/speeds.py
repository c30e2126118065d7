"""Speeds of things that no recording of a host tells: accelerators, links, and what an engine reaches of what the
machine can do. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from homenode.errors import UserError
from homenode.host.plan.numa.machine_speed import MachineSpeed, NodeSpeed
from homenode.host.plan.numa.step_cost import EngineKind
from homenode.host.topology.measured import Measured
from homenode.simulate.achieved import TYPICAL, AchievedSpeed
from homenode.simulate.costs import Link
from homenode.simulate.disk import DiskSpeed
from homenode.units import parse_bytes

DECLARED = EngineKind("declared", reads=1.0, links=1.0, multiplies=1.0, alone=1.0, straggling=0.0, handover_us=0.0)
_FIGURES = ("read_gb_s", "tops", "memory", "link_gb_s", "link_us")


@dataclass(frozen=True, slots=True)
class AcceleratorSpeed:
    """The speed that an accelerator reaches, as its owner says: reading its memory (1e9 bytes a second), multiplying
    (1e12 operations a second), bytes of memory; and the way from one to another or to the host.
    """

    read_gb_s: float
    tops: float
    memory: int
    link: Link

    @property
    def machine(self) -> MachineSpeed:
        """Return the machine as one node of one thread."""
        return MachineSpeed(
            (NodeSpeed(0, 1, self.read_gb_s, self.tops * 1000),), {}, 0.0, 0.0, "as given with --accelerator"
        )


@dataclass(frozen=True, slots=True)
class Speeds:
    """`measured`: of the host's nodes, None for typical ones. `achieved`: what this engine makes of them. `step_s`:
    seconds of each step besides. `disk`: on which KV is kept, None: on none."""

    measured: Measured | None = None
    achieved: AchievedSpeed = TYPICAL
    step_s: float = 0.0
    accelerator: AcceleratorSpeed | None = None
    acceptance: float | None = None  # the chance of a drafted token behind right ones; None: nothing is drafted
    disk: DiskSpeed | None = None


def read_accelerator(text: str) -> AcceleratorSpeed:
    """Return what `read_gb_s=..,tops=..,memory=..,link_gb_s=..,link_us=..` says. UserError for a figure that is
    missing, unknown or not above 0.
    """
    words = dict(word.partition("=")[::2] for word in text.split(",") if word)
    if set(words) != set(_FIGURES) or len(words) != text.count("="):
        raise _refusal(text, f"give each of {', '.join(_FIGURES)} once, as NAME=VALUE")
    try:
        memory = parse_bytes(words["memory"])
        read, tops, link, latency = (float(words[name]) for name in _FIGURES if name != "memory")
    except (ValueError, UserError):
        raise _refusal(text, "memory is a size such as 24GiB, the others are numbers") from None
    if not (0 < read < 1e9 and 0 < tops < 1e9 and 0 < link < 1e9 and 0 <= latency < 1e9 and memory > 0):
        raise _refusal(text, "every figure must be above 0")
    return AcceleratorSpeed(read, tops, memory, Link(latency / 1e6, 1 / (link * 1e9)))


def _refusal(text: str, fault: str) -> UserError:
    return UserError(f"--accelerator {text[:120]}: {fault}", param="accelerator")
