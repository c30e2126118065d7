"""GET /api/tags, POST /api/show, GET /api/ps and GET /api/version: what there is, and what it can do."""

from __future__ import annotations

import datetime
import hashlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from homenode.server.apis.ollama.names import TAG, tagged
from homenode.server.apis.ollama.request import HINTS, OllamaShowRequest
from homenode.server.core.state import ServerState
from homenode.server.http.decoding import decode_as
from homenode.server.http.endpoint import json_response
from homenode.server.http.exchange import read_json
from homenode.server.http.failures import ApiError
from homenode.server.models.served_model import ServedModel

if TYPE_CHECKING:
    from homenode.server.models.kept_model import KeptModel

# What is spoken here is the API of this release. Clients look for one that is recent enough.
_API_VERSION = "0.14.0"
_NEVER = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)  # when the model is unloaded
_UNITS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))


class OllamaDetails(Struct, kw_only=True):
    """The kind of model it is. `quantization_level`: the format that most of its weights are in."""

    parent_model: str = ""
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaListed(Struct, kw_only=True):
    """A model that can be asked for. `size`: bytes of its weights. `digest`: changes with the model."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails


class OllamaModels(Struct):
    """Answer of /api/tags."""

    models: list[OllamaListed]


class OllamaRunning(Struct, kw_only=True):
    """A model that is loaded. `context_length`: most tokens of prompt and answer together."""

    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails
    expires_at: str
    size_vram: int = 0
    context_length: int


class OllamaRunningModels(Struct):
    """Answer of /api/ps."""

    models: list[OllamaRunning]


class OllamaShown(Struct, kw_only=True):
    """Answer of /api/show. `parameters`: the sampling parameters of the model, one a line. `capabilities`: what it can
    do; `model_info`: its figures, by the names of GGUF.
    """

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaVersion(Struct):
    """Answer of /api/version."""

    version: str


_decode_show = decode_as(OllamaShowRequest, HINTS)


async def tags(state: ServerState, request: Request) -> Response:
    """Every name that a model answers to."""
    if state.models.changes:
        return json_response(OllamaModels([_listed(kept) for kept in _all_kept(state)]))
    return json_response(
        OllamaModels([ModelFacts(model).listed(name) for model in state.models for name in model.names])
    )


async def ps(state: ServerState, request: Request) -> Response:
    """Those that are loaded; where there is one, or several that stay, all that can be asked for."""
    if state.models.changes:
        loaded = [(kept, kept.served) for kept in _all_kept(state)]
        return json_response(OllamaRunningModels([_running(kept, one) for kept, one in loaded if one is not None]))
    running = [ModelFacts(model).running(name) for model in state.models for name in model.names]
    return json_response(OllamaRunningModels(running))


def _all_kept(state: ServerState) -> Sequence[KeptModel]:
    from homenode.server.core.several_models.kept import kept_models  # a server of one model starts sooner without

    return kept_models(state).kept


def _listed(kept: KeptModel) -> OllamaListed:
    """One that may not be loaded, of which little is known then."""
    if kept.served is not None:
        return ModelFacts(kept.served).listed(kept.name)
    digest = hashlib.sha256(repr(kept.planned.entry).encode()).hexdigest()
    details = OllamaDetails(format="unknown", family="unknown", families=[], parameter_size="", quantization_level="")
    name, size = tagged(kept.name), kept.planned.total
    modified = _time(datetime.datetime.fromtimestamp(0.0, datetime.UTC))
    return OllamaListed(name=name, model=name, modified_at=modified, size=size, digest=digest, details=details)


def _running(kept: KeptModel, served: ServedModel) -> OllamaRunning:
    """One that is loaded, and how long it stays."""
    running, left = ModelFacts(served).running(kept.name), kept.expires_in
    if left < 1e9:
        idle_s = 0.0 if kept.busy else time.monotonic() - kept.last_used
        ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=max(0.0, left - idle_s))
        running.expires_at = _time(ends)
    running.size = kept.planned.total
    return running


async def show(state: ServerState, request: Request) -> Response:
    """One model, with all that is known of it."""
    body = await read_json(state, request, _decode_show, any_type=True)
    name = body.model or body.name
    if not name:
        raise ApiError(400, "the required field `model` is missing", param="model", code="missing_required_parameter")
    model = (await state.models.obtain(request, name, TAG)).model
    return json_response(ModelFacts(model).shown(name if name in model.names else name.removesuffix(TAG)))


async def version(state: ServerState, request: Request) -> Response:
    """The release of Ollama whose API this is."""
    return json_response(OllamaVersion(_API_VERSION))


def capabilities(model: ServedModel) -> list[str]:
    """Return what the model can do, in Ollama's words."""
    if model.ready.pooling is not None:
        return [] if model.ready.pooling.labels else ["embedding"]
    found = ["completion"]
    if model.tokenizer.has_chat_template:
        found.append("tools")
    if model.formats.of(with_tools=False).has_thoughts:
        found.append("thinking")
    if model.tokenizer.fill_in_middle is not None:
        found.append("insert")
    return found


class ModelFacts:
    """Facts that the engine told of the model, as this API says it."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        told = model.ready.details.get("model")
        self._told: dict[str, Any] = told if isinstance(told, dict) else {}
        self._family = str(model.ready.details.get("architecture", "unknown"))

    def listed(self, name: str) -> OllamaListed:
        """An entry of /api/tags."""
        return OllamaListed(
            name=tagged(name),
            model=tagged(name),
            modified_at=self._modified,
            size=self._told.get("bytes", 0),
            digest=self._digest,
            details=self._details,
        )

    def running(self, name: str) -> OllamaRunning:
        """An entry of /api/ps."""
        return OllamaRunning(
            name=tagged(name),
            model=tagged(name),
            size=self._told.get("bytes", 0),
            digest=self._digest,
            details=self._details,
            expires_at=_time(_NEVER),
            context_length=self._model.ready.max_model_len,
        )

    def shown(self, name: str) -> OllamaShown:
        """The answer of /api/show."""
        return OllamaShown(
            modelfile=f"FROM {tagged(name)}\n",
            parameters="\n".join(f"{key} {value}" for key, value in self._model.sampling_defaults.items()),
            template=self._model.tokenizer.template_source() or "",
            details=self._details,
            model_info=self._info(name),
            capabilities=capabilities(self._model),
            modified_at=self._modified,
        )

    def _info(self, name: str) -> dict[str, Any]:
        """The context is what this server takes; the model's own may be longer."""
        figures = {
            "context_length": self._model.ready.max_model_len,
            "embedding_length": self._told.get("hidden_size"),
            "block_count": self._told.get("layers"),
            "feed_forward_length": self._told.get("intermediate_size"),
            "attention.head_count": self._told.get("heads"),
            "attention.head_count_kv": self._told.get("kv_heads"),
            "vocab_size": self._model.ready.vocab_size,
        }
        return {
            "general.architecture": self._family,
            "general.basename": name,
            "general.parameter_count": self._told.get("parameters", 0),
            **{f"{self._family}.{key}": value for key, value in figures.items() if value is not None},
        }

    @property
    def _details(self) -> OllamaDetails:
        return OllamaDetails(
            format=str(self._told.get("format", "unknown")),
            family=self._family,
            families=[self._family],
            parameter_size=_size(self._told.get("parameters", 0)),
            quantization_level=str(self._told.get("storage", "unknown")),
        )

    @property
    def _modified(self) -> str:
        return _time(datetime.datetime.fromtimestamp(self._told.get("modified", 0.0), datetime.UTC))

    @property
    def _digest(self) -> str:
        facts = msgspec.json.encode([self._model.ready.model, self._family, self._told], order="sorted")
        return hashlib.sha256(facts).hexdigest()


def _size(parameters: int) -> str:
    """A number of parameters as people write it, such as 134.5M."""
    for unit, letter in _UNITS:
        if parameters >= unit:
            return f"{parameters / unit:.1f}{letter}"
    return str(parameters)


def _time(moment: datetime.datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
