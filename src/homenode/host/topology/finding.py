"""A finding: something a person should know about a host, a plan or a binding, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SEVERITIES = ("info", "warning", "error")


@dataclass(frozen=True, slots=True)
class Finding:
    """`severity`: one of SEVERITIES. `code`: a word for programs. `remedy`: what to do; empty only for an `info`."""

    severity: str
    code: str
    message: str
    remedy: str = ""

    @property
    def text(self) -> str:
        """Return what and what to do, as sentences."""
        return " ".join(part.rstrip(".") + "." for part in (self.message, self.remedy) if part)

    def to_dict(self) -> dict[str, str]:
        """The JSON form: `{"severity", "code", "message", "remedy"}`."""
        return {"severity": self.severity, "code": self.code, "message": self.message, "remedy": self.remedy}

    @classmethod
    def from_dict(cls, raw: dict[str, str]) -> Finding:
        """The inverse of `to_dict`."""
        return cls(raw["severity"], raw["code"], raw["message"], raw["remedy"])


def worst(findings: Iterable[Finding]) -> str | None:
    """The gravest severity among them; None when there is none."""
    return max((finding.severity for finding in findings), key=SEVERITIES.index, default=None)
