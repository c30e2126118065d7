"""Frames between the coordinator and a front, beside those about requests and engines
(`homenode.engine.fronts.messages`).
"""

from __future__ import annotations

import msgspec

from homenode.engine.fronts.messages import FromLinked, ToLinked
from homenode.engine.messages import Fatal, FreeCpusChanged, Heartbeat, Ping
from homenode.engine.router.linked_client import LinkedSettings
from homenode.model.tokenizer.config import TextConfig
from homenode.server.http.config import ServedModelConfig, ServerConfig
from homenode.server.keys.named_key import NamedKey


class FrontModel(msgspec.Struct, frozen=True):
    """One entry of the table of models that a front serves: where its files are, how its vocabulary is read, and how
    it is served.
    """

    path: str
    text: TextConfig
    config: ServedModelConfig


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """First frame to a front: read the vocabularies of `models`. `metrics`: the folder of what all fronts count."""

    server: ServerConfig
    models: tuple[FrontModel, ...]
    metrics: str

    @property
    def paths(self) -> str:
        """Return where the models are, for messages."""
        return ", ".join(model.path for model in self.models)


class Begin(msgspec.Struct, frozen=True, tag=True):
    """The engines are ready. `front`: the number of this process, of `fronts` at a time; `slot`: its place among them,
    from 0. `started`: when the service was, in Unix seconds. `keys`: those in force.
    """

    front: int
    slot: int
    fronts: int
    started: int
    engines: LinkedSettings
    keys: tuple[NamedKey, ...] = ()


class KeysChanged(msgspec.Struct, frozen=True, tag=True):
    """Requests need one of these keys from now on."""

    keys: tuple[NamedKey, ...]


class Serve(msgspec.Struct, frozen=True, tag=True):
    """Every front is ready and the port listens: take connections."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Take no more requests, let the running ones finish within the time that is set for it, and end."""


class Prepared(msgspec.Struct, frozen=True, tag=True):
    """Front to coordinator: the vocabulary is read. `texts`: digests of the files that it was read from, by their
    paths.
    """

    texts: dict[str, str] = {}


class FrontReady(msgspec.Struct, frozen=True, tag=True):
    """Front to coordinator: the application is made; connections are taken from `Serve` on."""


ToFront = Prepare | Begin | KeysChanged | FreeCpusChanged | Serve | Stop | Ping | ToLinked
FromFront = Prepared | FrontReady | Heartbeat | Fatal | FromLinked
