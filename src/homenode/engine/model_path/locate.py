"""Finding the model before anything heavy is imported: a front starts its engine sooner for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from homenode.engine.config import EngineConfig
from homenode.errors import CapacityError
from homenode.model.formats.bounded_files import refuse_links
from homenode.model.hub.candidate import Candidate
from homenode.model.hub.locate import BUILTIN_NAME, locate

# Told, before weights are fetched, which model that is and, where it was chosen among several, why.
Announce = Callable[[Candidate, str], None]


def _say_nothing(taken: Candidate, why: str) -> None:
    """Tell nothing to a program, which asked for a model in its code."""


def locate_model(config: EngineConfig, announce: Announce = _say_nothing) -> EngineConfig:
    """The config with the path (and the name, if it had none) of its model filled in; fetches a Hub model that is not
    in the cache.

    Raises what `locate` raises, CapacityError, before weights are fetched, where the memory has no room for them and KV
    of one full context, and CheckpointError for links in the model where the config forbids them.
    """
    if config.model.path is not None:
        return config
    path = locate(config.model.model, revision=config.model.revision, choice=partial(choose, config, announce))
    if not config.model.links:
        refuse_links(path)
    return replace(config, model=replace(config.model, model=config.model.model or BUILTIN_NAME, path=str(path)))


def choose(config: EngineConfig, announce: Announce, candidates: Sequence[Candidate]) -> Candidate:
    """Choose, of the models that may be fetched, the one to take: see `choice`. CapacityError where the memory has no
    room for it and KV of one full context.
    """
    from homenode.engine.model_path.choice import describe_choice, memory_problem, rate, take_largest
    from homenode.host.topology.allowance import Allowance
    from homenode.host.topology.source import LiveSource

    available = Allowance.of_process(LiveSource()).memory_available
    if len(candidates) == 1:
        taken, why = candidates[0], ""
        if _in_memory_as_stored(config) and (problem := memory_problem(taken, config, available)):
            raise CapacityError(f"model {taken.repository}: {problem}", param="model")
    else:
        rated = rate(candidates, config, available)
        taken = take_largest(rated)
        why = describe_choice(rated, taken)
    announce(taken, why)
    return taken


def _in_memory_as_stored(config: EngineConfig) -> bool:
    """Return whether this machine's memory will hold the weights as they are in the file: not smaller, and not in part
    on accelerators or other hosts.
    """
    parallel, devices = config.parallel, config.parallel.stage_devices.strip()
    if config.model.quantize or parallel.workers > 1 or devices not in ("auto", "cpu"):
        return False
    if devices == "cpu":
        return True
    from homenode.compute.devices import accelerators

    return not accelerators()
