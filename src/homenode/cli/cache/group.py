"""`homenode cache`: what a folder of --kv-disk holds."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from homenode.cli.flags.suggestions import SuggestingGroup
from homenode.cli.output.report import json_errors, print_json, show_controls
from homenode.units import format_bytes, format_count, parse_bytes, parse_seconds

if TYPE_CHECKING:
    from homenode.engine.kv_disk.folder_contents import ModelContents, Verification

_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
_FOLDER = click.argument("folder", metavar="DIR")


@click.group(cls=SuggestingGroup)
def cache() -> None:
    """KV blocks that lie in a folder of --kv-disk: list, verify, prune, remove them. Servers may go on using it."""


@cache.command("list")
@_FOLDER
@_JSON
def list_blocks(folder: str, as_json: bool) -> None:
    """List what lies in DIR by model: blocks, tokens, size, when it was used."""
    with json_errors(as_json):
        from homenode.engine.kv_disk.folder_contents import FolderContents

        models = FolderContents(folder).models()
        if as_json:
            print_json([_entry(model) for model in models])
        else:
            _print_table(models, folder)


@cache.command()
@_FOLDER
@click.argument("model", required=False)
@click.option("--kv-disk-key", "key_file", metavar="FILE", help="The key that the blocks were left with.")
@click.option("--remove", is_flag=True, help="Remove those that are damaged.")
@_JSON
def verify(folder: str, model: str | None, key_file: str | None, remove: bool, as_json: bool) -> None:
    """Read every block in DIR, of all models or of MODEL. Exit code 1 where one is not what was written."""
    with json_errors(as_json):
        from homenode.engine.kv_disk.folder_contents import FolderContents, damaged_lines
        from homenode.engine.kv_disk.key_file import read_key

        contents = FolderContents(folder)
        key = None if key_file is None else read_key(key_file)
        found = [contents.verify(each, key, remove=remove) for each in contents.choose(model)]
        if as_json:
            print_json([_verified(each) for each in found])
        else:
            for line in damaged_lines(found):
                click.echo(show_controls(line))
            for each in found:
                click.echo(show_controls(_verdict(each, removed=remove)))
        if any(each.damaged for each in found):
            sys.exit(1)


@cache.command()
@_FOLDER
@click.option("--size", help="Bytes that may stay, such as 4GiB.")
@click.option("--older-than", help="Give up what was not used for so long, such as 7d.")
@_JSON
def prune(folder: str, size: str | None, older_than: str | None, as_json: bool) -> None:
    """Give up blocks in DIR that were not used for a time, or that would be given up first."""
    with json_errors(as_json):
        from homenode.engine.kv_disk.folder_contents import FolderContents

        if size is None and older_than is None:
            raise click.UsageError("give --size or --older-than: what is to stay")
        most = None if size is None else parse_bytes(size)
        age = None if older_than is None else parse_seconds(older_than)
        _print_freed(FolderContents(folder).prune(most, age), folder, as_json)


@cache.command()
@_FOLDER
@click.argument("model", required=False)
@click.option("--all", "everything", is_flag=True, help="The blocks of all models.")
@_JSON
def remove(folder: str, model: str | None, everything: bool, as_json: bool) -> None:
    """Remove the blocks of MODEL from DIR, by its name or the beginning of its folder's, or of all models."""
    with json_errors(as_json):
        from homenode.engine.kv_disk.folder_contents import FolderContents

        if (model is None) != everything:
            raise click.UsageError("name a model, or give --all")
        contents = FolderContents(folder)
        _print_freed(contents.remove(contents.choose(model)), folder, as_json)


def _print_freed(freed: int, folder: str, as_json: bool) -> None:
    if as_json:
        print_json({"freed_bytes": freed})
    else:
        click.echo(show_controls(f"{folder}: {format_bytes(freed)} of disk are free again"))


def _entry(model: ModelContents) -> dict[str, Any]:
    note = model.note
    return {
        "model": model.name,
        "folder": model.folder,
        "blocks": len(model.blocks.blocks),
        "size_bytes": model.blocks.size,
        "block_tokens": None if note is None else note.block_tokens,
        "encrypted": None if note is None else note.encrypted,
        "facts": {} if note is None else note.facts,
        "oldest_use": _time(model.oldest_use),
        "last_use": _time(model.last_use),
    }


def _verified(found: Verification) -> dict[str, Any]:
    return {
        "model": found.model.name,
        "folder": found.model.folder,
        "right": found.right,
        "damaged": found.damaged,
        "unread": found.unread,
    }


def _verdict(found: Verification, removed: bool) -> str:
    told = f"{found.model.name}: {format_count(found.right, 'block is', 'blocks are')} as they were written"
    if found.damaged:
        told += f", {len(found.damaged)} damaged{', removed' if removed else ''}"
    if found.unread:
        told += f", {found.unread} not read (without their key or description)"
    return told


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, tz=UTC).isoformat(timespec="seconds")


def _print_table(models: list[ModelContents], folder: str) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    from homenode.cli.output.report import OUT

    if not models:
        OUT.print(f"no KV blocks in {folder}", markup=False, highlight=False)
        return
    table = Table("model", "KV", "blocks", "size", "oldest use", "last use", "folder", box=SIMPLE, padding=(0, 1, 0, 0))
    for model in models:
        kept = "?" if model.note is None else model.note.facts.get("kv_dtype", "?")
        times = [(_time(at) or "-")[:16].replace("T", " ") for at in (model.oldest_use, model.last_use)]
        count, size = str(len(model.blocks.blocks)), format_bytes(model.blocks.size)
        table.add_row(show_controls(model.name), kept, count, size, *times, model.folder[:8])
    OUT.print(table)
