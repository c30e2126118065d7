"""The state that the endpoints of one application share."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from starlette.requests import Request
from starlette.responses import Response

from homenode.engine.fronts.numbers import first_number
from homenode.server.core.model_limits import ModelLimits
from homenode.server.core.response_store import StoreLimits, open_store
from homenode.server.core.thought_seal import ThoughtSeal
from homenode.server.http.admission import RequestAdmission
from homenode.server.http.bodies import Bodies
from homenode.server.http.config import ServerConfig
from homenode.server.http.request_load import RequestLoad
from homenode.server.keys.keyring import Keyring
from homenode.server.keys.named_key import unnamed_keys
from homenode.server.models.model_table import ModelsByName, ModelTable
from homenode.server.models.served_model import ModelParts, ServedModel
from homenode.server.models.text_work import TextWork
from homenode.server.monitoring.history import History
from homenode.server.monitoring.server_metrics import Metrics
from homenode.server.tracing.endpoint import begin_tracing

if TYPE_CHECKING:
    from homenode.server.batches.batch_folder import BatchFolder

_LOG = logging.getLogger("homenode.server")
_BODIES_AT_ONCE = 8  # bodies of the largest size that may be in memory together, of all fronts
_TEXTS_AT_ONCE = 8  # texts of the largest size, at a byte a character, that may be turned into tokens together


@dataclass(frozen=True)
class FrontIdentity:
    """The part that an application has in common with those of other front processes. `front`: the number of this one,
    of `fronts` at a time.

    `metrics`: the folder of what all of them count and keep. `started`: when the service was, in Unix seconds; None:
    now.
    """

    front: int = 0
    fronts: int = 1
    metrics: str | None = None
    started: int | None = None

    @property
    def replaces(self) -> bool:
        """Return whether this process is there because another one was lost: the first ones have the first numbers."""
        return self.front > self.fronts


ALONE = FrontIdentity()


def _batch_folder(path: str | None) -> BatchFolder | None:
    if path is None:
        return None
    from homenode.server.batches.batch_folder import BatchFolder  # few servers have one

    return BatchFolder(path)


class AnswersRequests(Protocol):
    """Something that answers the requests of one path, and keeps what they have in common."""

    async def answer(self, request: Request) -> Response: ...


class ServerState(RequestAdmission):
    """The models, the settings, and what is the server's and not of a model: keys, bounds of memory, stored responses,
    metrics, and the requests in flight.
    """

    def __init__(
        self,
        models: Sequence[ModelParts],
        config: ServerConfig,
        front: FrontIdentity = ALONE,
        *,
        keys: Keyring | None = None,
        table: Callable[[TextWork, Metrics], ModelsByName] | None = None,
    ) -> None:
        """`models`: at least one. `keys`: None: those of --api-key alone. `table`: makes the table where models are
        loaded when they are asked for; then there are no `models`. Raises UserError for two of one name.
        """
        super().__init__()
        self.keys = Keyring(unnamed_keys(config.api_key)) if keys is None else keys
        self.config = config
        alone = models[0].names[0] if len(models) == 1 else ""
        self.metrics = Metrics(alone, front.metrics, self.keys, vllm_names=config.metrics_names == "vllm")
        if front.metrics is not None:
            self.load = RequestLoad(front.metrics)
            self.metrics.front_begins(front.replaces)
        self.tracing = begin_tracing(config.otlp_traces_endpoint, "homenode")
        self.history = History(self.metrics.collect)
        self.overviews: AnswersRequests | None = None  # what makes the answers of /overview, once somebody asked
        self.is_one_of_several = front.metrics is not None  # fronts, which another process has started
        self.started = int(time.time()) if front.started is None else front.started
        self.bodies = Bodies(-(-_BODIES_AT_ONCE // front.fronts) * config.max_request_body)
        self.text_work = TextWork(_TEXTS_AT_ONCE * config.max_request_body)
        first_id = first_number(front.front) + 1
        self.models: ModelsByName
        if table is not None:
            self.models = table(self.text_work, self.metrics)
        else:
            self.models = ModelTable([ServedModel(parts, self.text_work, self.metrics, first_id) for parts in models])
        limits = StoreLimits(config.max_stored_responses, config.stored_responses_size, config.stored_response_age)
        self.responses = open_store(limits, front.metrics)
        self.batch_folder = _batch_folder(config.batch_dir)
        self.thought_seal = ThoughtSeal(config.thoughts_secret)

    @property
    def limits(self) -> ModelLimits:
        """The largest limits among the models; of some that are not loaded, as far as any model goes."""
        return ModelLimits.of_any(self.models.names) if self.models.changes else self._limits

    @cached_property
    def _limits(self) -> ModelLimits:
        return ModelLimits.of(self.models)

    def drain(self, timeout_s: float) -> None:
        """Take no new work, and load no model."""
        super().drain(timeout_s)
        self.models.drain()

    def refused(self, reason: str) -> None:
        """Count a request that was turned away."""
        self.metrics.refuse(reason)

    def watch_engines(self, all_lost: Callable[[str], None]) -> None:
        """Watch the engines: from now on a model whose engine is lost is refused, and `all_lost` hears when no model is
        left.
        """

        def watch(model: ServedModel) -> None:
            def lost(reason: str) -> None:
                model.lost = model.lost or reason
                if all(each.lost is not None for each in self.models):
                    all_lost(reason)
                else:
                    _LOG.error("the engine of the model %s is gone: %s; the others go on", model.name, reason)

            model.client.on_engine_lost = lost

        for model in self.models:
            watch(model)

    async def abort_all(self) -> None:
        """Ask all engines to forget everything that runs; each request is then answered with 503."""
        for model in self.models:
            model.abort_all()
