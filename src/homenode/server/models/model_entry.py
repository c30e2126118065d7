"""One model of a server of several, as its settings describe it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from homenode.engine.config import EngineConfig
from homenode.engine.kv_events_config import is_bound
from homenode.errors import UserError
from homenode.model.tokenizer.config import TextConfig
from homenode.server.http.config import ServedModelConfig


@dataclass(frozen=True)
class ModelEntry:
    """`name`: its own, `aliases`: others it answers to. `pin`: it is never unloaded for another. `on_demand`: it is
    loaded when it is first asked for; else at the start. `idle_timeout_s`: it is unloaded when nobody asked for it for
    so long; None: never for that. `nodes`, `cpus`: where it is to be; empty: wherever there is room.
    """

    name: str
    aliases: tuple[str, ...] = ()
    engine: EngineConfig = field(default_factory=EngineConfig)
    text: TextConfig = field(default_factory=TextConfig)
    served: ServedModelConfig = field(default_factory=ServedModelConfig)
    pin: bool = False
    on_demand: bool = True
    idle_timeout_s: float | None = None
    nodes: tuple[int, ...] = ()
    cpus: tuple[int, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All that it answers to."""
        return (self.name, *self.aliases)

    @property
    def endpoints(self) -> frozenset[str]:
        """All that its engines bind for events about KV blocks."""
        events = self.engine.kv_events
        if not events.on:
            return frozenset()
        ranks = [events.settings.of_rank(rank) for rank in range(self.engine.parallel.data_parallel_size)]
        found = (endpoint for each in ranks for endpoint in (each.endpoint, each.replay_endpoint))
        return frozenset(endpoint for endpoint in found if endpoint is not None and is_bound(endpoint))


def check_names(entries: Sequence[ModelEntry]) -> None:
    """Raises UserError for a name of two models."""
    owners: dict[str, str] = {}
    for entry in entries:
        for name in entry.names:
            if name in owners:
                whose = (
                    f"of two models, {owners[name]} and {entry.name}" if owners[name] != entry.name else "given twice"
                )
                raise UserError(
                    f"models.{entry.name}: the name {name!r} is {whose}; give each model names of its own",
                    param="models",
                )
            owners[name] = entry.name


def check_endpoints(entries: Sequence[ModelEntry]) -> None:
    """Raises UserError for an endpoint of two models."""
    owners: dict[str, str] = {}
    for entry in entries:
        for endpoint in sorted(entry.endpoints):
            if (owner := owners.setdefault(endpoint, entry.name)) != entry.name:
                raise UserError(
                    f"models.{entry.name}: kv-events-config has {endpoint}, which {owner} has, too; give each model "
                    "endpoints of its own",
                    param="models",
                )


@dataclass(frozen=True)
class PlannedModel:
    """A model, and where it is to be. `config`: with its path and the size of its KV memory. `memory`: bytes by node.
    `reason`: of its place, in words. `problem`: why its files could not be used when they were looked at.
    """

    entry: ModelEntry
    config: EngineConfig
    memory: dict[int, int] = field(default_factory=dict)
    nodes: tuple[int, ...] = ()
    cpus: tuple[int, ...] = ()
    reason: str = ""
    shares_cpus: bool = False
    problem: str | None = None

    @property
    def name(self) -> str:
        """Its own name."""
        return self.entry.name

    @property
    def total(self) -> int:
        """Bytes on all nodes."""
        return sum(self.memory.values())
