"""`homenode host`: the machine as homenode sees it, as a picture, as JSON, or written down as a recording."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from homenode.cli.flags.suggestions import SuggestingGroup
from homenode.cli.output.report import json_errors, print_json
from homenode.cli.placement.plan_flags import open_source
from homenode.units import format_count

if TYPE_CHECKING:
    from homenode.host.topology.source import Source

_FROM = click.option(
    "--from", "source", metavar="FILE", help="A recorded host, or one in a line such as 2s/4n/64c/smt2."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group(cls=SuggestingGroup, invoke_without_command=True)
@_FROM
@_JSON
@click.pass_context
def host(ctx: click.Context, source: str | None, as_json: bool) -> None:
    """Show this machine: sockets, nodes, caches, cores, devices, and what this process may use of them."""
    ctx.obj = (source, as_json)
    if ctx.invoked_subcommand is None:
        _show(source, as_json)


@host.command()
@_FROM
@_JSON
@click.pass_context
def show(ctx: click.Context, source: str | None, as_json: bool) -> None:
    """Draw the machine (what `homenode host` alone does)."""
    outer_source, outer_json = ctx.obj
    if source and outer_source and source != outer_source:
        raise click.UsageError(f"--from {outer_source} and --from {source} name two hosts; give one of them")
    _show(source or outer_source, as_json or outer_json)


@host.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.pass_context
def record(ctx: click.Context, file: Path) -> None:
    """Write what homenode reads of this machine to FILE, with nothing private in it; --from FILE reads it anywhere."""
    from homenode.host.discovery.snapshot import save_recording

    if ctx.obj[1]:
        raise click.UsageError(
            "--json is about showing a host; a recording is JSON whatever is asked for. Leave --json out"
        )
    with json_errors(False):
        recording = save_recording(file, open_source(ctx.obj[0]))
        click.echo(
            f"{file}: {format_count(len(recording['files']), 'file')} and "
            f"{format_count(len(recording['commands']), 'command')} recorded",
            err=True,
        )


def _show(text: str | None, as_json: bool) -> None:
    from homenode.host.discovery.read import read_host
    from homenode.host.topology.describe import host_to_dict

    with json_errors(as_json):
        source: Source = open_source(text)
        seen = read_host(source)
        if as_json:
            print_json(host_to_dict(seen))
            return
        from homenode.cli.output.report import print_fitted
        from homenode.cli.placement.draw_host import draw_host

        print_fitted(draw_host(seen))
