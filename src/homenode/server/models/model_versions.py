"""The models that settings name, and the versions of each: a changed one is loaded beside the earlier version, which
answers until then, and one that settings name no more stays until it is gone. On one event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from homenode.server.models.kept_model import KeptModel
from homenode.server.models.lifecycle import ModelState
from homenode.server.models.model_entry import PlannedModel
from homenode.server.models.model_host import PlannedModels
from homenode.server.models.model_names import check_key, named
from homenode.units import format_count

_LOG = logging.getLogger("homenode.models")


@dataclass(frozen=True)
class ModelChanges:
    """The names of models that settings changed."""

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)


class ModelVersions:
    """All models by name, and earlier versions of them. Iterating gives all versions."""

    def __init__(self, planned: PlannedModels) -> None:
        self.memory = planned.memory
        self._kept: dict[str, KeptModel] = {model.name: KeptModel(model, model.name) for model in planned.models}
        self._by_name: dict[str, KeptModel] = {}
        self._leaving: list[KeptModel] = []  # versions that settings name no more, and that are not gone yet
        self._versions = 0
        self._name_all()

    def __iter__(self) -> Iterator[KeptModel]:
        return iter((*self._kept.values(), *self._leaving))

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    @property
    def named(self) -> tuple[KeptModel, ...]:
        """The newest version of each, in the order of the settings."""
        return tuple(self._kept.values())

    @property
    def answering(self) -> Sequence[KeptModel]:
        """The version of each that answers, loaded or not, in the order of the settings."""
        return tuple(self._current(kept) for kept in self._kept.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all models, aliases included."""
        return tuple(self._by_name)

    def find(self, name: str | None, tag: str = "") -> KeptModel:
        """The model of this name, behind which `tag` may stand, loaded or not. A request that names none means the
        first. Raises ApiError 404, and 403 for a model that its key may not use.
        """
        kept = self._first() if name is None else named(self._by_name, name, tag, self.names)
        check_key(kept.name, kept.planned.entry.names)
        return self._current(kept)

    def _first(self) -> KeptModel:
        return next(iter(self._kept.values()))

    def _current(self, kept: KeptModel) -> KeptModel:
        """The version that answers: the earlier one, until the new one is loaded."""
        earlier = kept.replaces
        return earlier if earlier is not None and earlier.state is ModelState.LOADED else kept

    def _name_all(self) -> None:
        self._by_name = {name: kept for kept in self._kept.values() for name in kept.planned.entry.names}

    def take(self, found: PlannedModels) -> None:
        """Take in where models are to be whose settings have not changed since they were looked at."""
        models = {model.name: model for model in found.models}
        for kept in self._kept.values():
            if (model := models.get(kept.name)) is not None and model.entry == kept.planned.entry:
                self._place(kept, model, found)
        self._place_leaving(found)

    def change(self, planned: PlannedModels) -> ModelChanges:
        """Take in settings that were read again, and return what they have changed."""
        told, before = ModelChanges(), self._kept
        self.memory, self._kept = planned.memory, {}
        for model in planned.models:
            kept = before.pop(model.name, None)
            if kept is None:
                told.added.append(model.name)
                kept = KeptModel(model, model.name)
                if not model.entry.on_demand:
                    kept.want()
            elif kept.planned.entry != model.entry:
                told.changed.append(model.name)
                kept = self._next_version(kept, model)
            else:
                self._place(kept, model, planned)
                if kept.replaces is not None and kept.state is ModelState.FAILED:  # perhaps it is mended
                    kept.retry_at = 0.0
                    kept.want()
            self._kept[model.name] = kept
        for kept in before.values():
            told.gone.append(kept.name)
            if (earlier := kept.replaces) is not None:  # which had gone on until this one would be loaded
                kept.replaces = None
                self.let_go(earlier)
            self.let_go(kept)
        self._place_leaving(planned)
        self._name_all()
        _LOG.info("%s", _told(told))
        return told

    def _place(self, kept: KeptModel, model: PlannedModel, planned: PlannedModels) -> None:
        """Take in where a model is to be, which may be elsewhere now that others have come or gone."""
        if kept.state in (ModelState.UNLOADED, ModelState.FAILED):
            kept.measured(model)
        else:
            kept.next_place, kept.next_cpus = model if model != kept.planned else None, frozenset(model.cpus)
            kept.move_out_of(planned.models)

    def _place_leaving(self, planned: PlannedModels) -> None:
        """Note the CPUs of the next versions of those that are not gone yet: all others of theirs are others'."""
        cpus = {model.name: frozenset(model.cpus) for model in planned.models}
        for kept in self._leaving:
            kept.next_cpus = cpus.get(kept.name, frozenset())

    def _next_version(self, kept: KeptModel, model: PlannedModel) -> KeptModel:
        """The model by its new settings, which is loaded if the earlier version is."""
        self._versions += 1
        earlier = kept
        if kept.replaces is not None and kept.state is not ModelState.LOADED:
            earlier, kept.replaces = kept.replaces, None  # the version between was never in use, nor takes its place
            self.let_go(kept)
        new = KeptModel(model, f"{model.name} (version {self._versions})")
        new.loads, new.unloads, new.failures = kept.loads, kept.unloads, kept.failures
        if earlier.state in (ModelState.LOADED, ModelState.LOADING) or earlier.waiting:
            new.want()
        if earlier.state is ModelState.LOADED:
            new.replaces = earlier
            earlier.next_place, earlier.moves = None, False  # it goes when the new one is loaded
            if earlier not in self._leaving:
                self._leaving.append(earlier)
        else:
            self.let_go(earlier)
        earlier.wake()
        return new

    def let_go(self, kept: KeptModel) -> None:
        """Settings name it no more."""
        kept.removed = kept.leaves = True
        kept.wanted_by_itself = None
        kept.wake()
        if kept.state in (ModelState.UNLOADED, ModelState.FAILED):
            if kept in self._leaving:
                self._leaving.remove(kept)
        elif kept not in self._leaving:
            self._leaving.append(kept)

    def drop_if_gone(self, kept: KeptModel) -> None:
        """Forget a version that settings name no more, once its memory is back."""
        if kept.removed and kept in self._leaving and not kept.state.holds_memory:
            self._leaving.remove(kept)


def _told(told: ModelChanges) -> str:
    parts = [("new", told.added), ("changed", told.changed), ("gone", told.gone)]
    found = [f"{word}: {', '.join(names)}" for word, names in parts if names]
    count = format_count(sum(len(names) for _, names in parts), "model")
    return (
        f"settings were read again: {count} differ ({'; '.join(found)})"
        if found
        else "settings were read again: no model differs"
    )
