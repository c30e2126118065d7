"""`homenode models fit`: which models fit a machine, and how fast they are predicted to be there."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from homenode.cli.flags.settings import build, with_some_settings
from homenode.cli.output.report import json_errors, print_json, print_note, show_controls
from homenode.cli.placement.simulate import Size, host_with_memory
from homenode.engine.config import EngineConfig
from homenode.units import format_bytes

if TYPE_CHECKING:
    from homenode.cli.models.judge import Judgement
    from homenode.host.topology.host import Host

SETTINGS = ("quantize", "dtype", "max_model_len", "kv_cache_dtype", "max_num_seqs")


@click.command()
@click.argument("names", nargs=-1, metavar="[MODEL|shape:...]...")
@click.option(
    "--from",
    "source",
    metavar="FILE|SHAPE",
    help="A recording of a host (`homenode host record`), or one line such as 2s/4n/64c. Default: this machine.",
)
@click.option(
    "--node-memory", type=Size(), metavar="SIZE", help="Memory of each NUMA node, where the recording does not tell."
)
@with_some_settings(EngineConfig, *SETTINGS)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
def fit(names: tuple[str, ...], source: str | None, node_memory: int | None, as_json: bool, **values: Any) -> None:
    """Say which of these models fit a machine with room for one full context, and at what predicted speed. Default: all
    in the Hub cache.

    A model is named as for `homenode serve` and read from this machine, or given by its figures:
    shape:layers=24,hidden=896,heads=14,kv_heads=2,intermediate=4864,vocab=151936,format=Q4_0,tied=1.
    """
    with json_errors(as_json):
        from homenode.model.hub.cache import cached_models

        config: EngineConfig = build(EngineConfig, values)
        host = host_with_memory(source, node_memory)
        if node_memory is not None and all(node.memory is not None for node in host_with_memory(source, None).nodes):
            print_note("--node-memory is ignored: the host tells the memory of its nodes")
        asked = names or tuple(model.name for model in cached_models() if model.format != "incomplete")
        judged = [_judged(name, config, host) for name in asked]
        if as_json:
            print_json([{"name": name, **asdict(verdict)} for name, verdict in zip(asked, judged, strict=True)])
        else:
            _print(asked, judged)


def _judged(name: str, config: EngineConfig, host: Host) -> Judgement:
    """UserError for a shape with a figure that cannot be, and a model that is not on this machine."""
    from homenode.cli.models.judge import judge, judge_path
    from homenode.model.hub.locate import locate
    from homenode.simulate.shape import PREFIX, shape_checkpoint

    if name.startswith(PREFIX):
        return judge(shape_checkpoint(name), config, host)
    return judge_path(locate(name, offline=True), config, host)


def _print(names: tuple[str, ...], judged: list[Judgement]) -> None:
    from homenode.cli.output.report import OUT

    if not names:
        OUT.print("no models in the Hub cache; name some, or give shape:...", markup=False, highlight=False)
    for name, verdict in zip(names, judged, strict=True):
        told = f"does not fit: {verdict.reason}" if verdict.supported else f"not supported: {verdict.reason}"
        if verdict.fits and verdict.tok_s is not None:
            weights, kv = format_bytes(verdict.weights_bytes or 0), format_bytes(verdict.kv_bytes or 0)
            told = (
                f"fits: {weights} of weights, up to {kv} of KV memory, about {_figure(verdict.tok_s)} tok/s predicted"
            )
        OUT.print(show_controls(f"{name}: {told}"), markup=False, highlight=False)


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
