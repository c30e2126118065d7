"""`homenode bench`: measurements of this machine, as a table or as JSON."""

from __future__ import annotations

import click

from homenode.cli.bench_attention import attention
from homenode.cli.bench_kernels import kernels
from homenode.cli.bench_model import model
from homenode.cli.bench_nodes import nodes
from homenode.cli.bench_ranks import ranks
from homenode.cli.bench_serve import serve
from homenode.cli.bench_start import start
from homenode.cli.bench_step import step
from homenode.cli.bench_transfer import transfer
from homenode.cli.suggestions import SuggestingGroup


@click.group(cls=SuggestingGroup)
def bench() -> None:
    """Measure how fast things run here."""


bench.add_command(model)
bench.add_command(kernels)
bench.add_command(attention)
bench.add_command(nodes)
bench.add_command(ranks)
bench.add_command(serve)
bench.add_command(start)
bench.add_command(step)
bench.add_command(transfer)
