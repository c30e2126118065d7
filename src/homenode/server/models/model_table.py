"""The models of a server by their names, and the one that a request asks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from starlette.requests import Request

from homenode.errors import UserError
from homenode.server.http.decoding import BodyDecoder
from homenode.server.http.exchange import BodyLimits, read_json
from homenode.server.http.failures import ApiError
from homenode.server.models.served_model import ServedModel


class NamesModel(Protocol):
    """A body that may name a model."""

    @property
    def model(self) -> str | None: ...


class ServesModels(BodyLimits, Protocol):
    """The state of a server that has a table of models."""

    models: ModelTable


B = TypeVar("B", bound=NamesModel)


class ModelTable:
    """The served models, at least one, in their order; a request that names none means the first."""

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

    def find(self, name: str | None, tag: str = "") -> ServedModel:
        """The model of this name, behind which `tag` may stand. Raises ApiError 404 for a name that is not served, and
        503 where the engine of the model is gone.
        """
        model = self.first if name is None else self._named(name, tag)
        if model.lost is not None:
            text = f"the engine of the model `{model.name}` is gone"
            raise ApiError(503, text, param="model", code="engine_lost", retry_after_s=5)
        return model

    def _named(self, name: str, tag: str) -> ServedModel:
        model = self._by_name.get(name) or self._by_name.get(name.removesuffix(tag))
        if model is not None:
            return model
        known = ", ".join(f"`{each}`" for each in self._by_name)
        raise ApiError(
            404,
            f"`model` is `{name.removesuffix(tag)[:200]}`, which is not served here; there is {known}",
            param="model",
            code="model_not_found",
        )


async def read_for_model(
    state: ServesModels, request: Request, decode: BodyDecoder[B], *, any_type: bool = False, tag: str = ""
) -> tuple[B, ServedModel]:
    """The body of a request, as `read_json` has it, and the model that it asks for. `tag`: may stand behind its name.

    Raises as `read_json` and `ModelTable.find`.
    """
    body = await read_json(state, request, decode, any_type=any_type)
    return body, state.models.find(body.model, tag)
