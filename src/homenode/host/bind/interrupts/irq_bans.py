"""Have irqbalance leave a binding's interrupts alone, and give them back to it: the steps and findings of talking to
it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from homenode.errors import HostError
from homenode.host.bind.base.report import ActionResult, Report, skipped
from homenode.host.bind.base.state import State
from homenode.host.bind.interrupts.irqbalance import DEADLINE_S, Bans, Irqbalance, read_bans, set_bans
from homenode.host.topology.finding import Finding
from homenode.units import format_count

STEP = "irqbalance"
_MOST_NAMED = 32


@dataclass(frozen=True)
class Balance:
    """irqbalance (None: it does not run) and the interrupts it must be told of; `fresh` are those that it does not
    leave alone yet."""

    daemon: Irqbalance | None
    irqs: tuple[int, ...]
    bans: Bans | None = None
    refusal: str = ""
    fresh: frozenset[int] = field(default=frozenset())

    @classmethod
    def ask(cls, daemon: Irqbalance | None, irqs: tuple[int, ...]) -> Balance:
        """Learn what it leaves alone already."""
        if daemon is None:
            return cls(None, irqs)
        try:
            bans = read_bans(daemon)
        except HostError as error:
            return cls(daemon, irqs, refusal=error.message)
        return cls(daemon, irqs, bans, fresh=frozenset(irqs) - bans.irqs)

    def ban(self) -> Report:
        """Have it leave our interrupts alone, and still those that it left alone before."""
        if self.daemon is None:
            return Report((skipped(STEP, "it does not run, nothing else moves interrupts"),))
        if self.bans is None:
            return _not_told(self.refusal, self.irqs)
        if not self.fresh:
            return Report((ActionResult(STEP, "done", "it leaves them alone already"),))
        try:
            set_bans(self.daemon, self.bans.irqs | self.fresh, self.bans.command_bytes)
        except HostError as error:
            return _not_told(error.message, sorted(self.fresh))
        kept = f", as well as {len(self.bans.irqs)} that were banned before" if self.bans.irqs else ""
        return Report(
            (
                ActionResult(
                    STEP,
                    "done",
                    f"process {self.daemon.pid} leaves {format_count(len(self.fresh), 'interrupt')} alone{kept}",
                ),
            )
        )


def unban(daemon: Irqbalance | None, irqs: frozenset[int]) -> Report:
    """Let it have `irqs` again; what others have banned stays so."""
    if daemon is None:
        return Report((skipped(STEP, "it does not run"),))
    try:
        bans = read_bans(daemon)
        if bans.irqs & irqs:
            set_bans(daemon, bans.irqs - irqs, bans.command_bytes)
    except HostError as error:
        message = (
            f"irqbalance was not told that it may move {format_count(len(irqs), 'interrupt')} again: {error.message}"
        )
        finding = Finding("warning", "irqbalance_not_told", message, "Restart it: systemctl restart irqbalance")
        return Report((ActionResult(STEP, "failed", error.message),), (finding,))
    return Report(
        (ActionResult(STEP, "undone", f"it may move {format_count(len(bans.irqs & irqs), 'interrupt')} again"),)
    )


@contextmanager
def one_at_a_time(state: State | None) -> Iterator[None]:
    """The list is read and then replaced: two commands at once would lose each other's interrupts. Goes on alone where
    it must wait too long."""
    with ExitStack() as held:
        if state is not None:
            with suppress(HostError):
                held.enter_context(state.locked(STEP, 3 * DEADLINE_S))
        yield


def _not_told(why: str, irqs: Sequence[int]) -> Report:
    words = " ".join(f"--banirq={irq}" for irq in irqs[:_MOST_NAMED]) + (" ..." if len(irqs) > _MOST_NAMED else "")
    message = f"irqbalance was not told to leave {format_count(len(irqs), 'interrupt')} alone and will move them: {why}"
    remedy = (
        f"Run this as root, or start irqbalance with {words} (its options are in /etc/default/irqbalance or "
        "/etc/sysconfig/irqbalance)"
    )
    return Report((skipped(STEP, why),), (Finding("warning", "irqbalance_not_told", message, remedy),))
