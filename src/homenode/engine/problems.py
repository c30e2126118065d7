"""Problems with the settings of an engine, gathered while it is planned."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from homenode.errors import UserError

T = TypeVar("T")


class SettingProblems:
    """Each problem once, by its message, in the order found."""

    def __init__(self) -> None:
        self._found: dict[str, UserError] = {}

    @property
    def found(self) -> list[UserError]:
        """All of them."""
        return list(self._found.values())

    def add(self, *problems: UserError | None) -> None:
        """None: nothing is wrong there."""
        for problem in problems:
            if problem is not None:
                self._found.setdefault(problem.message, problem)

    def of(self, decide: Callable[[], T], otherwise: T) -> T:
        """Return what `decide` returns; `otherwise` where it raises UserError, which is kept, so that what can be
        judged without that decision is judged as well.
        """
        try:
            return decide()
        except UserError as error:
            self.add(error)
            return otherwise

    def require_none(self) -> None:
        """Raises the problem there is, or UserError with the messages of all; nothing where there is none."""
        require_none(self.found)


def require_none(problems: Iterable[UserError]) -> None:
    """The same for problems that were gathered elsewhere."""
    found = list(problems)
    if len(found) == 1:
        raise found[0]
    if found:
        raise UserError("; ".join(problem.message for problem in found), param=found[0].param)
