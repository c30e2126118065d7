"""Options that take a count of tokens: `8192`, or `8k` as models are named."""

from __future__ import annotations

import click

from homenode.errors import UserError
from homenode.units import parse_tokens


class TokenCount(click.ParamType[int]):
    """A count of tokens, at least `minimum`."""

    name = "N"

    def __init__(self, minimum: int = 0) -> None:
        self.minimum = minimum

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The count. click.BadParameter for what is none, and for one that is too small."""
        try:
            count = parse_tokens(value if isinstance(value, int) else str(value))
        except UserError as error:
            self.fail(error.message, param, ctx)
        if count < self.minimum:
            self.fail(f"{value} is too small; at least {self.minimum}", param, ctx)
        return count


class TokenCountList(click.ParamType[tuple[int, ...]]):
    """Counts of tokens, joined by commas, all above 0: `512,8k,32k`."""

    name = "N,N,..."

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """The counts. click.BadParameter for what is none."""
        if isinstance(value, tuple):
            return value
        one = TokenCount(1)
        return tuple(one.convert(part, param, ctx) for part in str(value).split(","))
