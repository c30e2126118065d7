"""The models of a server by their names, and the one that a request asks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from starlette.requests import Request

from homenode.errors import UserError
from homenode.server.http.decoding import BodyDecoder
from homenode.server.http.exchange import BodyLimits, read_json
from homenode.server.http.failures import ApiError
from homenode.server.models.model_names import check_key, named
from homenode.server.models.served_model import AskedModel, ServedModel


class NamesModel(Protocol):
    """A body that may name a model."""

    @property
    def model(self) -> str | None: ...


class ServesModels(BodyLimits, Protocol):
    """The state of a server that has a table of models."""

    models: ModelsByName


class ModelsByName(Protocol):
    """The models of a server: all there from the start to the end (`ModelTable`), or loaded when they are asked for
    (`kept_models.KeptModels`). Iterating gives those that can answer now.
    """

    changes: bool

    def __iter__(self) -> Iterator[ServedModel]: ...

    def __len__(self) -> int: ...

    def __contains__(self, name: object) -> bool: ...

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def first(self) -> ServedModel: ...

    def find(self, name: str | None, tag: str = "") -> AskedModel: ...

    async def obtain(
        self, request: Request, name: str | None, tag: str = "", *, stream: bool = False
    ) -> AskedModel: ...

    def keep(self, served: ServedModel, seconds: float | None) -> None: ...

    def drain(self) -> None: ...


B = TypeVar("B", bound=NamesModel)


class ModelTable:
    """The served models, at least one, in their order; a request that names none means the first."""

    changes = False

    def __init__(self, models: Sequence[ServedModel]) -> None:
        """Raises UserError for a name that two models have."""
        self._models = tuple(models)
        self._by_name: dict[str, ServedModel] = {}
        for model in self._models:
            for name in model.names:
                if self._by_name.setdefault(name, model) is not model:
                    raise UserError(
                        f"two models are called {name!r}; give each its own names with --served-model-name",
                        param="served_model_name",
                    )

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all models, aliases included."""
        return tuple(self._by_name)

    @property
    def first(self) -> ServedModel:
        """The model of requests that name none."""
        return self._models[0]

    def find(self, name: str | None, tag: str = "") -> AskedModel:
        """The model of this name, behind which `tag` may stand. Raises ApiError 404 for a name that is not served, and
        503 where the engine of the model is gone.
        """
        model = self.first if name is None else named(self._by_name, name, tag, self.names)
        check_key(model.name, model.names)
        if model.lost is not None:
            text = f"the engine of the model `{model.name}` is gone"
            raise ApiError(503, text, param="model", code="engine_lost", retry_after_s=5)
        return AskedModel.by(model, name, tag)

    async def obtain(self, request: Request, name: str | None, tag: str = "", *, stream: bool = False) -> AskedModel:
        """The same for a request, which never waits: all are loaded."""
        return self.find(name, tag)

    def keep(self, served: ServedModel, seconds: float | None) -> None:
        """Nothing changes: all are kept until the end of the server."""

    def drain(self) -> None:
        """Nobody waits for a model."""


async def read_for_model(
    state: ServesModels, request: Request, decode: BodyDecoder[B], *, any_type: bool = False, tag: str = ""
) -> tuple[B, AskedModel]:
    """The body of a request, as `read_json` has it, and the model that it asks for. `tag`: may stand behind its name.

    A stream is one unless it says no where names have a tag, and if it says so elsewhere. Raises as `read_json` and
    `obtain` of the models.
    """
    body = await read_json(state, request, decode, any_type=any_type)
    return body, await model_for(state, request, body, tag=tag)


async def model_for(state: ServesModels, request: Request, body: NamesModel, *, tag: str = "") -> AskedModel:
    """The model that a body which was read asks for. Raises as `read_for_model`."""
    stream = getattr(body, "stream", False)
    return await state.models.obtain(request, body.model, tag, stream=stream or (stream is None and bool(tag)))
