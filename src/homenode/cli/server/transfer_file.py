"""`--kv-transfer-config`: its settings take the place of defaults, and of what the file given by `--config` says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from homenode.cli.flags.settings import OTHER_SOURCES
from homenode.transfer.setup.settings import read_settings_file

_WINS = (click.core.ParameterSource.COMMANDLINE, click.core.ParameterSource.ENVIRONMENT)


def take_transfer_file(ctx: click.Context, values: dict[str, Any]) -> Sequence[str]:
    """Put the file's settings into `values` and the context, where no flag and no variable says otherwise; lines about
    what has no effect. Raises as `read_settings_file`."""
    if not values.get("kv_transfer_config"):
        return ()
    sources = ctx.meta.setdefault(OTHER_SOURCES, {})
    file = read_settings_file(values["kv_transfer_config"])
    for name, value in file.settings.items():
        if ctx.get_parameter_source(name) not in _WINS:
            values[name] = ctx.params[name] = value
            sources[name] = "kv transfer config"
    return file.told
