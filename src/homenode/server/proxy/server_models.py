"""The models of a server of several, as a proxy sees them: what they are called, and what each publishes about its part
in handing KV over. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import msgspec

from homenode.server.apis.ollama.names import TAG
from homenode.transfer.wire.message import Published, encode_published


class _Status(msgspec.Struct):
    value: str = "loaded"


class _ListedModel(msgspec.Struct):
    id: str
    aliases: list[str] = []
    status: _Status = msgspec.field(default_factory=_Status)


class _Listed(msgspec.Struct):
    data: list[_ListedModel]


class _ListedEntries(msgspec.Struct):
    data: list[msgspec.Raw]


class _NamedModel(msgspec.Struct):
    model: str | None = None


@dataclass(frozen=True)
class PublishedKv:
    """`document`: what a model publishes, of several engines the first one; `raw`: as it came; empty where it publishes
    nothing. `engines`: the document of each, where it has several.
    """

    document: Published | None = None
    raw: bytes = b""
    engines: tuple[Published, ...] = ()

    def of(self, engine: str | None) -> bytes:
        """Return what this engine publishes, or the only one, as JSON; empty when it is not there."""
        if engine is None:
            return self.raw
        return next((encode_published(document) for document in self.engines if document.incarnation == engine), b"")


@dataclass(frozen=True)
class ServerModels:
    """The models of one server of several. `names`: the model of each name and alias, the first model first;
    `published`: by model; `loaded`: at the last look.
    """

    names: Mapping[str, str]
    published: Mapping[str, PublishedKv] = field(default_factory=dict)
    loaded: Collection[str] = field(default=(), compare=False)

    def find(self, model: str | None) -> PublishedKv:
        """Return what the model of this name publishes; of None the first."""
        return self.published.get(self._served(model), PublishedKv())

    def find_loaded(self, model: str | None) -> str | None:
        """Return the own name of the model of this name, of None the first; None where it is not loaded."""
        own = self._served(model)
        return own if own in self.loaded else None

    def __contains__(self, model: object) -> bool:
        return isinstance(model, str) and bool(self._own_name(model))

    def _served(self, model: str | None) -> str:
        return next(iter(self.names.values()), "") if model is None else self._own_name(model)

    def _own_name(self, model: str) -> str:
        return self.names.get(model) or self.names.get(model.removesuffix(TAG), "")


def read_listed(body: bytes) -> tuple[dict[str, str], list[str]]:
    """The model of each name, and the models that are loaded, by an answer of GET /v1/models. Raises
    msgspec.DecodeError.
    """
    listed = msgspec.json.decode(body, type=_Listed).data
    own = {model.id: model.id for model in listed}
    names = own | {name: model.id for model in listed for name in model.aliases if name not in own}
    return names, [model.id for model in listed if model.status.value == "loaded"]


def listed_models(body: bytes) -> dict[str, msgspec.Raw]:
    """Return the entries of an answer of GET /v1/models by their ids. Raises msgspec.DecodeError."""
    entries = msgspec.json.decode(body, type=_ListedEntries).data
    return {msgspec.json.decode(entry, type=_ListedModel).id: entry for entry in entries}


def is_of_several(body: bytes) -> bool:
    """Return whether an answer of GET /kv_transfer says that one has to name a model."""
    try:
        error = msgspec.json.decode(body)["error"]
        return bool(error["param"] == "model")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        return False


def model_in(body: bytes) -> str | None:
    """Return the model that the body of a request names; None: none, or it cannot be read."""
    try:
        return msgspec.json.decode(body, type=_NamedModel).model if body else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
