"""The interface by which a server of several models has engines started and ended, and hears what its files name.
`homenode.cli.server.engine_host.EngineHost` fulfils it; tests use a scripted one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from homenode.server.models.lifecycle import ModelsMemory
from homenode.server.models.model_entry import PlannedModel
from homenode.server.models.served_model import ModelParts


@dataclass(frozen=True)
class PlannedModels:
    """All models, and the memory that they share."""

    models: Sequence[PlannedModel]
    memory: ModelsMemory


class ModelHost(Protocol):
    """Starts and ends the engines of models. What is not a coroutine blocks, and is called on a thread."""

    def read(self) -> PlannedModels:
        """Read the models again, and plan their places. Raises UserError for what is wrong; then nothing changes."""

    def measure(self, planned: PlannedModel) -> PlannedModels:
        """Look at the files of this model again, and plan all that were read last: where its files could not be used
        before it had no place beside the others.
        """

    async def start(self, planned: PlannedModel, progress: Callable[[int, int], None]) -> ModelParts:
        """Start its engine and read its vocabulary. Raises HomenodeError; then nothing of it is left."""

    async def end(self, planned: PlannedModel, parts: ModelParts, drain_s: float) -> None:
        """End its engine and give everything back. `drain_s`: for requests that it still has."""
