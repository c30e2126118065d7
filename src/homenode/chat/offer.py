"""The tools that a request offers, and how freely the model decides to call them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class ToolUse(enum.Enum):
    """The freedom that the model has to call."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


@dataclass(frozen=True)
class ToolOffer:
    """`tools`: as chat templates know them, {"type": "function", "function": {"name", "description", "parameters",
    "strict"}}, where the last three may be missing. `named`: the tool that is called, whatever `use` says. `parallel`:
    whether one answer may have several calls. `inputs`: by the name of a tool whose parameters are one text, a grammar
    in Lark that this text keeps.
    """

    tools: list[dict[str, Any]]
    use: ToolUse = ToolUse.AUTO
    named: str | None = None
    parallel: bool = True
    inputs: Mapping[str, str] = field(default_factory=dict)

    @property
    def must_call(self) -> bool:
        """Return whether the answer has at least one call."""
        return self.named is not None or self.use is ToolUse.REQUIRED


def takes_several(wish: bool | None, *, must_call: bool) -> bool:
    """Return whether an answer may have several calls. `wish`: what a client says about that, None: nothing.
    `must_call`: there is one at least; that is the only one then, unless the client asks for more, as a weak model that
    is bound to call goes on and on.
    """
    return not must_call if wish is None else wish
