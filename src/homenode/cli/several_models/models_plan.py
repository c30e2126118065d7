"""The places and sizes of the models that `--models` names: what a server does with them, before it does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from homenode.cpuset import format_cpu_list
from homenode.engine.config import EngineConfig
from homenode.engine.model_path.locate import Announce, locate_model
from homenode.engine.plan.several_models.nodes import ModelDemand
from homenode.engine.plan.several_models.placement import ModelPlace, PlacedModels, place_models
from homenode.engine.plan.several_models.size import ModelSize, size_model
from homenode.engine.scheduler_config import check_config
from homenode.errors import CapacityError, HomenodeError, UserError
from homenode.host.topology.host import Host
from homenode.model.checkpoint.index import open_checkpoint
from homenode.server.models.lent_cores import lent_alone
from homenode.server.models.model_entry import ModelEntry, PlannedModel
from homenode.units import format_bytes, format_count

UNBOUNDED = 1 << 62  # bytes, on a host of which a recording does not tell how much memory it has
_USABLE = 0.9  # of the memory that is available: the rest is for the server, and for what models take beside


@dataclass(frozen=True)
class MeasuredModel:
    """`config`: with the model's path and the size of its KV memory. `problem`: why its files cannot be used as they
    are now; then there is no size.
    """

    entry: ModelEntry
    config: EngineConfig
    size: ModelSize | None = None
    problem: HomenodeError | None = None

    @property
    def demand(self) -> ModelDemand | None:
        """Return what it wants of a host; None where that is not known."""
        if self.size is None:
            return None
        parallel, entry = self.config.parallel, self.entry
        least = parallel.data_parallel_size * parallel.workers
        return ModelDemand(entry.name, self.size.total, entry.pin, entry.nodes, entry.cpus, least)


def measure_model(entry: ModelEntry, announce: Announce | None = None) -> MeasuredModel:
    """Find a model, fetch it where it is not here, and read its headers. Never raises what is wrong with it."""
    config = entry.engine
    try:
        config = locate_model(config, announce) if announce is not None else locate_model(config)
        checkpoint = open_checkpoint(Path(str(config.model.path)))
        problems = check_config(config.scheduler, config.kv, min(config.model.max_model_len or 1, 1))
        if problems:
            raise problems[0]
        config, size = size_model(config, checkpoint)
    except HomenodeError as error:
        return MeasuredModel(entry, config, problem=error)
    return MeasuredModel(entry, config, size)


@dataclass(frozen=True)
class ModelsPlan:
    """`budget`: bytes that the models may take together; `asked`: that settings say so. `problems`: of models that have
    no place.
    """

    budget: int
    asked: bool
    measured: tuple[MeasuredModel, ...]
    places: dict[str, ModelPlace]
    problems: dict[str, HomenodeError]


def plan_models(
    measured: Sequence[MeasuredModel],
    host: Host,
    budget: int | None,
    reserve_cores: int | None = None,
    placing: Callable[[Host, Sequence[ModelDemand], int | None], PlacedModels] = place_models,
) -> ModelsPlan:
    """Decide where each is to be. `budget`: None: what the host has. CapacityError where pinned models exceed it, and
    UserError as `place_models`.
    """
    asked, total = budget is not None, budget if budget is not None else usable_memory(host)
    demands = [demand for each in measured if (demand := each.demand) is not None]
    _check_pinned(demands, total, asked=asked)
    placed = placing(host, demands, reserve_cores)
    crowded = [(each, problem) for each in measured if (problem := _too_many_threads(each, placed)) is not None]
    problems: dict[str, HomenodeError] = {each.entry.name: problem for each, problem in crowded} | {
        each.entry.name: each.problem for each in measured if each.problem is not None
    }
    places = {name: place for name, place in placed.places.items() if name not in problems}
    return ModelsPlan(total, asked, tuple(measured), places, problems | dict(placed.refused))


def _too_many_threads(measured: MeasuredModel, placed: PlacedModels) -> UserError | None:
    """Return why a model cannot have as many threads as its settings say, if so."""
    place, parallel = placed.places.get(measured.entry.name), measured.config.parallel
    wanted = (measured.config.compute.threads or 0) * parallel.data_parallel_size
    if place is None or wanted <= len(place.cpus):
        return None
    return UserError(
        f"threads: it is to have {format_count(wanted, 'compute thread')}, and {format_count(len(place.cpus), 'CPU')} "
        f"({format_cpu_list(place.cpus)}); give fewer, or name its CPUs with `cpus`",
        param="threads",
    )


def usable_memory(host: Host) -> int:
    """Bytes that models may take on a host where settings do not say."""
    free = sum(size for node in host.nodes if (size := node.memory if node.free is None else node.free) is not None)
    available = host.allowance.memory_available or free
    return int(_USABLE * available) if available else UNBOUNDED


def _check_pinned(demands: Sequence[ModelDemand], budget: int, *, asked: bool) -> None:
    pinned = sorted((each for each in demands if each.pin), key=lambda each: each.name)
    total = sum(each.memory for each in pinned)
    if total > budget:
        each_of = ", ".join(f"{each.name} {format_bytes(each.memory)}" for each in pinned)
        flag = "--models-memory is" if asked else "the memory for models (--models-memory) is"
        raise CapacityError(
            f"the pinned models take {format_bytes(total)} together ({each_of}), and {flag} {format_bytes(budget)}: "
            f"{format_bytes(total - budget)} are lacking; pin fewer, or give them less KV memory (kv-cache-memory)",
            param="models_memory",
        )


def lending(made: ModelsPlan) -> list[str]:
    """Return what is to be told of cores that a model has while nobody asks for others."""
    planned = [
        PlannedModel(
            each.entry, each.config, dict(place.memory), place.nodes, place.cpus, shares_cpus=bool(place.shared_with)
        )
        for each in made.measured
        if (place := made.places.get(each.entry.name)) is not None
    ]
    return [
        f"{name} computes on CPUs {format_cpu_list(sorted(cpus))}, too, while the models that these belong to are not "
        "loaded and nobody has asked for them for --models-lend-after"
        for name, cpus in sorted(lent_alone(planned).items())
    ]


def crowding(made: ModelsPlan) -> list[str]:
    """Return what is to be told of models that cannot all be in memory, or compute, at once."""
    total = sum(place.total for place in made.places.values())
    shared = sorted(name for name, place in made.places.items() if place.shared_with)
    found = []
    if total > made.budget:
        found.append(
            f"all models together take {format_bytes(total)}, and may take {format_bytes(made.budget)} "
            "(--models-memory): "
            "the one that was used longest ago is unloaded for another"
        )
    if shared:
        found.append(f"{format_count(len(shared), 'model')} share CPUs and take turns: {', '.join(shared)}")
    for name, place in sorted(made.places.items()):
        if place.total > made.budget:
            found.append(
                f"{name} takes {format_bytes(place.total)}, which is more than all models may take: it is refused when "
                "it is asked for"
            )
    return found
