"""Notes on an engine's settings before it starts, on standard error: those that were given and have no
effect.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import click
from click.core import ParameterSource

from homenode.cli.output.report import ERR, told_of_equivalents
from homenode.engine.config import EngineConfig


def tell_unused_settings(config: EngineConfig, devices: Sequence[str] = ("cpu",), engines: int | None = None) -> None:
    """`devices`: of the engine's workers, as `workers.devices` has them; one CPU worker where nothing else is said.
    `engines`: of the service, where that is known."""
    from homenode.engine.plan.rules.settings_without_effect import settings_without_effect

    for line in told_of_equivalents():
        ERR.print(f"homenode: note: {line}", markup=False, highlight=False)
    for finding in settings_without_effect(config, devices, os.environ, engines):
        ERR.print(f"homenode: {finding.severity}: {finding.text}", markup=False, highlight=False)


def tell_refused_calls() -> None:
    """Tell, for commands with an engine of their own: which calls that help it this process may not make."""
    from homenode.host.bind.base.optional_calls import refused_at_start

    for finding in refused_at_start(1):
        ERR.print(f"homenode: {finding.severity}: {finding.text}", markup=False, highlight=False)


def tell_unused_sampling(temperature: float | None) -> None:
    """Tell, for commands that sample: what --top-p and --top-k cannot do at temperature 0. A seed is kept to there,
    too, as every answer is the same.
    """
    context = click.get_current_context()
    names = [name for name in ("top_p", "top_k") if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if names and temperature == 0:
        given = " ".join(f"--{name.replace('_', '-')} {context.params[name]}" for name in names)
        why = "at --temperature 0 the likeliest token is taken every time"
        ERR.print(f"homenode: warning: {given} is ignored: {why}", markup=False, highlight=False)
