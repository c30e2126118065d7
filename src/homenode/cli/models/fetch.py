"""`homenode models fetch`: a model comes into the Hub cache, after what it takes was told."""

from __future__ import annotations

from typing import Any

import click

from homenode.cli.flags.settings import build, with_some_settings
from homenode.cli.models.fit import SETTINGS
from homenode.cli.output.report import plain_errors
from homenode.engine.config import EngineConfig


@click.command()
@click.argument("name")
@with_some_settings(EngineConfig, "revision", *SETTINGS)
def fetch(name: str, **values: Any) -> None:
    """Fetch NAME (org/name, org/name:Q4_K_M or org/name:model.gguf) into the Hub cache, without starting it. Prints its
    path.

    It is refused as `homenode serve` with these settings refuses it.
    """
    with plain_errors():
        from homenode.cli.models.announcement import announce_fetch
        from homenode.engine.model_path.locate import locate_model

        config: EngineConfig = build(EngineConfig, {"model": name, **values})
        click.echo(str(locate_model(config, announce_fetch(config)).model.path))
