"""A model that is served: its engine, its tokenizer, and all that answers are made with."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from homenode import __version__
from homenode.engine.messages import EngineReady
from homenode.engine.request import AdapterChoice
from homenode.engine.token_rules import TokenRules
from homenode.server.http.config import ServedModelConfig
from homenode.server.interfaces.client import EngineClient
from homenode.server.interfaces.tokenizer import TokenizerLike
from homenode.server.models.grammar_work import GrammarWork
from homenode.server.models.model_formats import ModelFormats
from homenode.server.models.request_log import RequestLog
from homenode.server.models.text_work import TextWork
from homenode.server.monitoring.server_metrics import Metrics
from homenode.transfer.wire.message import Published

if TYPE_CHECKING:
    from homenode.server.models.media import Taken, Works


@dataclass(frozen=True)
class ModelParts:
    """The parts that a start makes of a model: the client of its engine, which is started, its tokenizer, and how it is
    served.
    """

    client: EngineClient
    tokenizer: TokenizerLike
    config: ServedModelConfig
    media: Works = field(default_factory=dict)  # the kinds that it takes

    @property
    def names(self) -> tuple[str, ...]:
        """The names that it answers to, with an adapter or without; the first is its own."""
        own = self.config.served_model_name or (_public_name(self.client.ready.model),)
        return (*own, *self.client.ready.adapters)


class ServedModel:
    """One entry of a server's table of models. Nothing here is shared with another model but `text_work`, the threads
    of the server that work on texts.

    `names`: those it answers to, aliases included; `name`: the one in metrics, and in answers to who names none.
    `active`: engine requests that have not ended; `tickets`: those of them whose KV is handed over, by ticket.
    `kv_transfer`: what the engine publishes for others to hand KV to it or from it, None: it has no part in that.
    `lost`: why its engine is gone.
    """

    def __init__(self, parts: ModelParts, text_work: TextWork, metrics: Metrics, first_id: int = 1) -> None:
        """`metrics`: of the server. `first_id`: of its requests; those of other front processes begin elsewhere."""
        self.parts = parts
        self.client, self.tokenizer, self.config = parts.client, parts.tokenizer, parts.config
        self.ready, self.names = parts.client.ready, parts.names
        self.media = parts.media
        self.text_work = text_work
        self.request_log = RequestLog(self.config, self.tokenizer, text_work)
        self.metrics = metrics.add_model(self.name, parts.client)
        self.fingerprint = _fingerprint(self.ready)
        self.kv_transfer = _published(self.ready)
        self.grammars = GrammarWork(self.tokenizer, self.ready.vocab_size)
        self.formats = ModelFormats(self.tokenizer, self.config)
        self.active: set[int] = set()
        self.tickets: dict[str, int] = {}
        self.lost: str | None = None
        self._ids = itertools.count(first_id)

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.names[0]

    @property
    def taken(self) -> Taken:
        """The kinds of media that it takes."""
        return frozenset(self.media)

    @property
    def media_marked_in_text(self) -> Taken:
        """The kinds of media for which marks stand in texts, as no chat template writes anything for them."""
        return frozenset(kind for kind, work in self.media.items() if work.family.marker_token == "")

    @property
    def sampling_defaults(self) -> Mapping[str, float]:
        """The sampling parameters of requests that leave them open, by their fields, as far as the model's
        generation_config.json says something and counts (`--generation-config`).
        """
        return self.ready.sampling_defaults if self.config.generation_config == "auto" else {}

    @property
    def most_sequences(self) -> int:
        """The most sequences that one request may ask for: no more than its engine lets in at once."""
        own = self.config.max_sequences_per_request
        return min(own, self.ready.queue.most_requests or own)

    @cached_property
    def token_rules(self) -> TokenRules:
        """The rules that sampling parameters make of texts, over this vocabulary."""
        return TokenRules(self.tokenizer, self.ready.vocab_size)

    def next_id(self) -> int:
        """A request id that this model's engine was never given before."""
        return next(self._ids)

    def close(self) -> None:
        """End the threads that work for it alone."""
        self.grammars.close()

    def abort_all(self) -> None:
        """Ask the engine to forget everything that runs; each request is then answered with 503."""
        for id in tuple(self.active):
            self.client.abort(id, "abort")


@dataclass(frozen=True, slots=True)
class AskedModel:
    """A model as a request asks for it, from the table of models to the requests that the engine gets for it
    (`core.engine_request`). `name`: the one to answer under, which is what it was asked by, if any. `adapter`: what
    that name means besides the model.
    """

    model: ServedModel
    name: str
    adapter: AdapterChoice | None = None

    @classmethod
    def by(cls, model: ServedModel, asked: str | None, tag: str = "") -> AskedModel:
        """The model, asked for by this name, behind which `tag` may stand; None: by none, which means its first."""
        name, adapters = asked or model.name, model.ready.adapters
        return cls(model, name, adapters.get(name) or adapters.get(name.removesuffix(tag)))


def _public_name(model: str) -> str:
    """A model read from a path is known by its last part: where it lies on the server is nobody's business."""
    return model.rstrip("/").rsplit("/", 1)[-1] if model.startswith(("/", ".", "~")) else model


def _published(ready: EngineReady) -> Published | None:
    document = ready.details.get("kv_transfer")
    return None if document is None else msgspec.convert(document, Published)


def _fingerprint(ready: EngineReady) -> str:
    """Changes with the version, the model and the engine's settings."""
    facts = msgspec.json.encode([__version__, ready], enc_hook=repr)
    return "fp_" + hashlib.blake2b(facts, digest_size=6).hexdigest()
