"""`homenode models remove`: a repository leaves the Hub cache."""

from __future__ import annotations

import sys

import click

from homenode.cli.output.report import plain_errors
from homenode.units import format_bytes


@click.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove(name: str, yes: bool) -> None:
    """Remove the repository NAME (org/name) with all its files from the Hub cache. Asks first; without an answer
    nothing is removed."""
    with plain_errors():
        from homenode.errors import UserError
        from homenode.model.hub.cache import cached_models, remove_repository

        if ":" in name:
            raise UserError(
                f"{name}: whole repositories are removed; give {name.partition(':')[0]}, or delete the file by hand",
                param="name",
            )
        size = sum(model.size for model in cached_models() if model.repository == name)
        known = any(model.repository == name for model in cached_models())
        if known and not yes and not _agreed(f"remove {name} ({format_bytes(size)}) from the Hub cache? [y/N] "):
            click.echo("nothing was removed; --yes removes without asking", err=True)
            sys.exit(1)
        click.echo(f"{name}: removed, {format_bytes(remove_repository(name))} of disk are free again", err=True)


def _agreed(question: str) -> bool:
    click.echo(question, nl=False, err=True)
    answer = sys.stdin.readline().strip().lower()
    return answer in ("y", "yes")
