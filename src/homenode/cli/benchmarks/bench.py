"""`homenode bench`: measurements of this machine, as a table or as JSON."""

from __future__ import annotations

import click

from homenode.cli.benchmarks.attention import attention
from homenode.cli.benchmarks.kernels import kernels
from homenode.cli.benchmarks.model import model
from homenode.cli.benchmarks.nodes import nodes
from homenode.cli.benchmarks.ranks import ranks
from homenode.cli.benchmarks.serve import serve
from homenode.cli.benchmarks.speculate import speculate
from homenode.cli.benchmarks.start import start
from homenode.cli.benchmarks.step import step
from homenode.cli.benchmarks.transfer import transfer
from homenode.cli.flags.suggestions import SuggestingGroup


@click.group(cls=SuggestingGroup)
def bench() -> None:
    """Measure how fast things run here."""


bench.add_command(model)
bench.add_command(kernels)
bench.add_command(attention)
bench.add_command(nodes)
bench.add_command(ranks)
bench.add_command(serve)
bench.add_command(speculate)
bench.add_command(start)
bench.add_command(step)
bench.add_command(transfer)
