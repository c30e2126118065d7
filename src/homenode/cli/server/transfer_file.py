"""`--kv-transfer-config FILE`: its settings take the place of defaults, and of what the file given by `--config`
says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from homenode.cli.flags.settings import OTHER_SOURCES
from homenode.transfer.settings_file import read_settings_file

_WINS = (click.core.ParameterSource.COMMANDLINE, click.core.ParameterSource.ENVIRONMENT)


def take_transfer_file(ctx: click.Context, values: dict[str, Any]) -> None:
    """Put the file's settings into `values` and the context, where no flag and no variable says otherwise. Raises as
    `read_settings_file`."""
    if not values.get("kv_transfer_config"):
        return
    sources = ctx.meta.setdefault(OTHER_SOURCES, {})
    for name, value in read_settings_file(Path(values["kv_transfer_config"])).items():
        if ctx.get_parameter_source(name) not in _WINS:
            values[name] = ctx.params[name] = value
            sources[name] = "kv transfer config"
