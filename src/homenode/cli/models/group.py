"""`homenode models`: what the Hub cache of this machine holds, which models fit a machine, and those of a server."""

from __future__ import annotations

import click

from homenode.cli.flags.suggestions import SuggestingGroup
from homenode.cli.models.cache_table import list_models
from homenode.cli.models.fetch import fetch
from homenode.cli.models.fit import fit
from homenode.cli.models.remove import remove
from homenode.cli.models.running import load, reload, served, unload


@click.group(cls=SuggestingGroup, invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
@click.pass_context
def models(ctx: click.Context, as_json: bool) -> None:
    """List the models in the Hub cache: name, size, format, whether homenode runs them, whether they fit this machine,
    when they were last used. `served`, `load`, `unload` and `reload` speak to a server that runs."""
    if ctx.invoked_subcommand is None:
        list_models(as_json)
    elif as_json:
        raise click.UsageError("give --json after the command: homenode models fit --json")


models.add_command(fetch)
models.add_command(fit)
models.add_command(remove)
for command in (served, load, unload, reload):
    models.add_command(command)
