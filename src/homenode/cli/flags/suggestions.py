"""Suggestions for mistyped commands, options and choices, in the errors that click raises for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from homenode.spelling import with_suggestion


class SuggestingGroup(click.Group):
    """A group of commands that suggests one for a name that it does not have.

    For an option that does not exist, of the group or of any command in it, it suggests those that are nearly spelt so.
    """

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-") and not ctx.resilient_parsing:
            known = [*self.list_commands(ctx), *_options(self, ctx)]
            raise click.UsageError(with_suggestion(f"No such command {name!r}.", name, known), ctx)
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _options_suggested(list(args)):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with _options_suggested(list(ctx.args)):
            return super().invoke(ctx)


class SuggestingChoice(click.Choice[str]):
    """A choice among words, with a suggestion for one that is not among them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            self.fail(with_suggestion(error.message, str(value), self.choices), param, ctx)


@contextmanager
def _options_suggested(words: Sequence[str]) -> Iterator[None]:
    """Run a block in which, where an option does not exist, name those with fewest typing mistakes, instead of those
    that click takes.

    `words`: of the command line. Of `-port` click has seen the letter p only.
    """
    try:
        yield
    except click.NoSuchOption as error:
        if error.ctx is None:
            raise
        known = _options(error.ctx.command, error.ctx)
        name = error.option_name
        typed = next((word for word in words if len(name) == 2 and word.startswith(name) and len(word) > 3), name)
        raise click.UsageError(with_suggestion(error.message, typed, known), error.ctx) from error


def _options(command: click.Command, ctx: click.Context) -> Sequence[str]:
    """Every long option of a command, the ones that switch off as well."""
    options = [name for param in command.get_params(ctx) for name in (*param.opts, *param.secondary_opts)]
    return [name for name in options if name.startswith("--")]
