"""Commands that take the flags of other programs: they become ours before click reads them, or are told or refused."""

from __future__ import annotations

import os
from collections.abc import Mapping

import click

from homenode.cli.flags.settings import OTHER_SOURCES
from homenode.cli.output.report import GIVEN_AS, TOLD, VARIABLE_SETTINGS
from homenode.equivalents.translation import OwnFlag, translate
from homenode.equivalents.variables import read_variables


class EquivalentsCommand(click.Command):
    """A command that takes settings of vLLM, llama.cpp and SGLang by their names there (homenode.equivalents)."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = _own_flags(self, ctx)
        names = {opt: str(param.name) for param in self.get_params(ctx) for opt in param.opts}
        made = translate(args, own, takes_model="model" in names)
        if made.refused:
            raise click.UsageError("; ".join(made.refused), ctx)
        variables = read_variables(os.environ, own)
        ctx.meta[TOLD] = [*made.told, *variables.told]
        ctx.meta[GIVEN_AS] = {names[flag]: written for flag, written in made.given_as.items()}
        ctx.meta[VARIABLE_SETTINGS] = {
            names[flag]: (variables.variables[flag], value) for flag, value in variables.values.items()
        }
        sources = ctx.meta.setdefault(OTHER_SOURCES, {})
        sources |= {name: f"flag {written}" for name, written in ctx.meta[GIVEN_AS].items()}
        return super().parse_args(ctx, made.words)


def _own_flags(command: click.Command, ctx: click.Context) -> Mapping[str, OwnFlag]:
    own: dict[str, OwnFlag] = {}
    for param in command.get_params(ctx):
        if isinstance(param, click.Option):
            kind = OwnFlag(not (param.is_flag or param.count), param.multiple)
            own |= dict.fromkeys((*param.opts, *param.secondary_opts), kind)
    return own
