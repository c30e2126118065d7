"""The result of a binding, step by step, and what a reading back found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from homenode.host.topology.finding import Finding, worst

OUTCOMES = ("done", "degraded", "skipped", "failed", "undone")


@dataclass(frozen=True, slots=True)
class ActionResult:
    """One step: `what` ("affinity", "memory policy", "pages", "irq 2753", ...), its outcome (one of OUTCOMES), and why
    or how much."""

    what: str
    outcome: str
    detail: str = ""


@dataclass(frozen=True)
class Report:
    """`steps` in the order taken. `findings`: what a person should know; severity error where the binding is not what
    was planned."""

    steps: tuple[ActionResult, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def ok(self) -> bool:
        """Return whether everything that was planned holds."""
        return worst(self.findings) != "error"

    def __add__(self, other: Report) -> Report:
        return Report((*self.steps, *other.steps), (*self.findings, *other.findings))

    def to_dict(self) -> dict[str, Any]:
        """`{"steps": [{"what", "outcome", "detail"}], "findings": [...]}`."""
        steps = [{"what": step.what, "outcome": step.outcome, "detail": step.detail} for step in self.steps]
        return {"steps": steps, "findings": [finding.to_dict() for finding in self.findings]}


def skipped(what: str, why: str) -> ActionResult:
    """A step that a missing prerequisite leaves out."""
    return ActionResult(what, "skipped", why)


def errors(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return those of severity error."""
    return tuple(finding for finding in findings if finding.severity == "error")
