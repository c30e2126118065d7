"""`homenode keys`: keys and certificates of the hosts of a cluster, made and shown."""

from __future__ import annotations

import json
from pathlib import Path

import click

from homenode.cli.flags.suggestions import SuggestingGroup
from homenode.cli.output.report import plain_errors


@click.group(cls=SuggestingGroup)
def keys() -> None:
    """Make and show the keys by which engines, workers and servers on several hosts know each other (--peer-keys)."""


@keys.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("hosts", nargs=-1)
@click.option("--days", type=click.IntRange(1, 3650), default=825, show_default=True, help="How long they count.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
def make(folder: Path, hosts: tuple[str, ...], days: int, as_json: bool) -> None:
    """Write keys into FOLDER: a folder for each of HOSTS, or, without any, FOLDER itself for all hosts.

    FOLDER/HOST is to be copied to that host, where --peer-keys names it. More hosts can be added later: then the file
    peers of all is written anew. The authority's key stays in FOLDER, which no server needs.
    """
    with plain_errors():
        from homenode.net.make_keys import make_keys

        made = make_keys(folder, hosts, days)
        if as_json:
            click.echo(
                json.dumps([{"name": one.name, "folder": str(one.folder), "digest": one.digest} for one in made])
            )
            return
        for one in made:
            click.echo(f"{one.digest}  {one.name}  {one.folder}")


@keys.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(folder: Path, as_json: bool) -> None:
    """Show a host's FOLDER: its certificate's digest, how long it counts, and the peers that are accepted. Fails where
    it cannot be used.
    """
    with plain_errors():
        from homenode.net.keys import KeyFolder, digest_text, valid_until

        found = KeyFolder(folder)
        found.check()
        own, until = digest_text(found.digest()), f"{valid_until(found):%Y-%m-%d}"
        peers = [{"digest": digest_text(digest), "name": name} for digest, name in found.pins().items()]
        if as_json:
            click.echo(json.dumps({"digest": own, "until": until, "peers": peers}))
            return
        click.echo(f"certificate  {own}  counts until {until}")
        for peer in peers:
            click.echo(f"peer         {peer['digest']}  {peer['name']}".rstrip())
        if not peers:
            click.echo("peer         whatever the authority has signed (there is no file peers)")
