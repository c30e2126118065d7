"""What the endpoints of one application share."""

from __future__ import annotations

import hashlib
import itertools
import time
from dataclasses import dataclass
from functools import cached_property

import msgspec

from homenode import __version__
from homenode.engine.fronts.numbers import first_number
from homenode.engine.messages import EngineReady
from homenode.engine.token_rules import TokenRules
from homenode.server.core.grammar_work import GrammarWork
from homenode.server.core.model_formats import ModelFormats
from homenode.server.core.response_store import StoreLimits, open_store
from homenode.server.core.text_work import TextWork
from homenode.server.core.thought_seal import ThoughtSeal
from homenode.server.http.admission import RequestAdmission
from homenode.server.http.bodies import Bodies
from homenode.server.http.config import ServerConfig
from homenode.server.http.failures import ApiError
from homenode.server.interfaces.client import EngineClient
from homenode.server.interfaces.tokenizer import TokenizerLike
from homenode.server.keys.keyring import Keyring
from homenode.server.keys.named_key import unnamed_keys
from homenode.server.monitoring.server_metrics import Metrics
from homenode.transfer.setup.published import Published

_BODIES_AT_ONCE = 8  # bodies of the largest size that may be in memory together, of all fronts
_TEXTS_AT_ONCE = 8  # texts of the largest size, at a byte a character, that may be turned into tokens together


@dataclass(frozen=True)
class FrontIdentity:
    """What an application has in common with those of other front processes. `front`: the number of this one, of
    `fronts` at a time.

    `metrics`: the folder of what all of them count and keep. `started`: when the service was, in Unix seconds; None:
    now.
    """

    front: int = 0
    fronts: int = 1
    metrics: str | None = None
    started: int | None = None

    @property
    def replaces(self) -> bool:
        """Whether this process is there because another one was lost: the first ones have the first numbers."""
        return self.front > self.fronts


ALONE = FrontIdentity()


class ServerState(RequestAdmission):
    """The engine client, the tokenizer, the settings, and the requests in flight."""

    def __init__(
        self,
        client: EngineClient,
        tokenizer: TokenizerLike,
        config: ServerConfig,
        front: FrontIdentity = ALONE,
        *,
        keys: Keyring | None = None,
    ) -> None:
        """`keys`: None: those of --api-key alone."""
        super().__init__()
        self.keys = Keyring(unnamed_keys(config.api_key)) if keys is None else keys
        self.client, self.tokenizer, self.config = client, tokenizer, config
        self.ready = client.ready
        self.models = config.served_model_name or (_public_name(self.ready.model),)
        self.metrics = Metrics(self.models[0], client, front.metrics, self.keys)
        if front.metrics is not None:
            self.metrics.front_begins(front.replaces)
        self.fingerprint = _fingerprint(self.ready)
        self.started = int(time.time()) if front.started is None else front.started
        self.active: set[int] = set()  # engine requests that have not ended
        self.tickets: dict[str, int] = {}  # those of them whose KV is handed over, by ticket
        self.kv_transfer = _published(self.ready)  # None: this server has no part in that
        self.bodies = Bodies(-(-_BODIES_AT_ONCE // front.fronts) * config.max_request_body)
        self.text_work = TextWork(_TEXTS_AT_ONCE * config.max_request_body)
        self.grammars = GrammarWork(tokenizer, self.ready.vocab_size)
        self.formats = ModelFormats(tokenizer, config)
        limits = StoreLimits(config.max_stored_responses, config.stored_responses_size, config.stored_response_age)
        self.responses = open_store(limits, front.metrics)
        self.thought_seal = ThoughtSeal(config.thoughts_secret)
        self._ids = itertools.count(first_number(front.front) + 1)

    @cached_property
    def token_rules(self) -> TokenRules:
        """What sampling parameters say about texts, over this vocabulary."""
        return TokenRules(self.tokenizer, self.ready.vocab_size)

    def next_id(self) -> int:
        """A request id never given before."""
        return next(self._ids)

    def model(self, name: str | None) -> str:
        """The name to answer under. Raises ApiError 404 for a name that is not served."""
        if name is None or name in self.models:
            return name or self.models[0]
        known = ", ".join(f"`{model}`" for model in self.models)
        raise ApiError(
            404,
            f"`model` is `{name[:200]}`, which is not served here; there is {known}",
            param="model",
            code="model_not_found",
        )

    def refused(self, reason: str) -> None:
        """Count a request that was turned away."""
        self.metrics.refuse(reason)

    async def abort_all(self) -> None:
        """Asks the engine to forget everything that runs; each request is then answered with 503."""
        for id in tuple(self.active):
            self.client.abort(id, "abort")


def _public_name(model: str) -> str:
    """A model read from a path is known by its last part: where it lies on the server is nobody's business."""
    return model.rstrip("/").rsplit("/", 1)[-1] if model.startswith(("/", ".", "~")) else model


def _published(ready: EngineReady) -> Published | None:
    """What the engine publishes for others to hand KV to or from it."""
    document = ready.details.get("kv_transfer")
    return None if document is None else msgspec.convert(document, Published)


def _fingerprint(ready: EngineReady) -> str:
    """Changes with the version, the model and the engine's settings."""
    facts = msgspec.json.encode([__version__, ready], enc_hook=repr)
    return "fp_" + hashlib.blake2b(facts, digest_size=6).hexdigest()
