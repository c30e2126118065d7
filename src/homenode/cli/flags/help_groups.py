"""The help of a command with very many options: a short one for who sees it first, and a whole one, both in groups."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, ClassVar

import click

from homenode.units import format_count


class HelpGroup(Enum):
    """The subjects of options, in the order in which their groups are shown; the values are the headings."""

    MODEL = "Model"
    SERVER = "Server"
    MEMORY = "Memory"
    PLACEMENT = "Placement on cores and nodes"
    PARALLEL = "Parallel engines and workers"
    TRANSFER = "Transfer of KV between servers"
    RAY = "Ray"
    GENERAL = "Settings and help"


class GroupedHelpCommand(click.Command):
    """A command whose `--help` shows its first options, and whose `--help-all` shows all of them.

    A subclass names the group of each option, and the options that are shown at first.
    """

    groups: ClassVar[Mapping[str, HelpGroup]] = {}
    """The groups of parameters, by name; the others are of the group GENERAL."""
    first: ClassVar[frozenset[str]] = frozenset()
    """The names of the parameters that `--help` shows, besides those of the group GENERAL."""

    def __init__(self, *args: Any, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self.params.append(
            click.Option(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=self._show_all,
                help="Show all options and exit.",
            )
        )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        whole = bool(ctx.meta.get(_WHOLE))
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        shown = [option for option in options if whole or self._is_first(option)]
        for group in HelpGroup:
            records = [option.get_help_record(ctx) for option in shown if self._group_of(option) is group]
            if lines := [record for record in records if record is not None]:
                with formatter.section(group.value):
                    formatter.write_dl(lines)
        if len(shown) < len(options):
            subjects = ", ".join(group.name.lower() for group in HelpGroup if group is not HelpGroup.GENERAL)
            formatter.write_paragraph()
            formatter.write_text(
                f"{ctx.command_path} --help-all shows {format_count(len(options) - len(shown), 'option')} more, on: "
                f"{subjects}."
            )

    def _group_of(self, option: click.Option) -> HelpGroup:
        return self.groups.get(option.name or "", HelpGroup.GENERAL)

    def _is_first(self, option: click.Option) -> bool:
        return option.name in self.first or self._group_of(option) is HelpGroup.GENERAL

    def _show_all(self, ctx: click.Context, param: click.Parameter, show: bool) -> None:
        if show and not ctx.resilient_parsing:
            ctx.meta[_WHOLE] = True
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()


_WHOLE = "homenode.whole-help"  # in a context's meta: whether every option is to be shown
