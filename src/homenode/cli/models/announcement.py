"""An announcement before a model's weights are fetched: what they take of disk and memory, and how fast the model is
predicted to be here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from homenode.cli.output.report import print_note
from homenode.engine.config import EngineConfig
from homenode.units import format_bytes, format_count

if TYPE_CHECKING:
    from homenode.engine.model_path.locate import Announce
    from homenode.model.hub.candidate import Candidate


def announce_fetch(config: EngineConfig, write_line: Callable[[str], None] = print_note) -> Announce:
    """Return what tells it of an engine with these settings, a line at a time by `write_line`."""

    def announce(taken: Candidate, why: str) -> None:
        if why:
            write_line(why)
        write_line(_takes(taken))
        write_line(_speed(taken, config))

    return announce


def _takes(taken: Candidate) -> str:
    from homenode.host.topology.allowance import Allowance
    from homenode.host.topology.source import LiveSource
    from homenode.model.hub.refusals import free_disk
    from homenode.model.hub.repository import cache_folder

    cache, files = cache_folder(None), len(taken.weights)
    free = free_disk(cache)
    disk = "" if free is None else f" ({format_bytes(free)} are free)"
    available = format_bytes(Allowance.of_process(LiveSource()).memory_available)
    name = taken.repository if taken.file is None else f"{taken.repository}:{taken.file}"
    return (
        f"{name} takes {format_bytes(taken.size)} of disk in {format_count(files, 'file')} of weights, in "
        f"{cache}{disk}, and about as much memory, "
        f"and KV memory beside it ({available} are available)"
    )


def _speed(taken: Candidate, config: EngineConfig) -> str:
    from homenode.cli.models.judge import judge
    from homenode.host.discovery.read import read_host
    from homenode.host.topology.source import LiveSource
    from homenode.simulate.shape import sized_checkpoint

    if taken.spec is None:
        return "how fast it will be is not predicted: its figures are not known before it is here"
    # A prompt that `generate` has room for may be longer than the model's context.
    if config.model.max_model_len is not None:
        length = min(config.model.max_model_len, taken.spec.max_position)
        config = replace(config, model=replace(config.model, max_model_len=length))
    verdict = judge(sized_checkpoint(taken.spec, taken.size), config, read_host(LiveSource(), accelerators=False))
    if verdict.tok_s is None:
        return f"with these settings it will not start: {verdict.reason}"
    return f"predicted: about {verdict.tok_s:.3g} tokens/s of one request; `homenode bench model` measures it"
