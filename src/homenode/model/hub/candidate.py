"""A model of a Hub repository that is about to be fetched, with what is known of it before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from homenode.errors import UserError
from homenode.model.hub.repository import HubFile

if TYPE_CHECKING:
    from homenode.model.spec import ModelSpec  # imports numpy, which a front does not wait for


@dataclass(frozen=True)
class Candidate:
    """A model that a repository has. `file`: the GGUF file (of a split one, its first part); none for a model of
    safetensors files.

    `weights`: its files of weights; `spec`: its figures, None where they are not known before it is here. `problem`:
    why the disk has no room for it, if so.
    """

    repository: str
    file: str | None
    weights: tuple[HubFile, ...]
    spec: ModelSpec | None = None
    problem: str = ""

    @property
    def size(self) -> int:
        """Bytes of its weights."""
        return sum(file.size for file in self.weights)


# Takes the models that a repository offers under one name, of which none is here yet, and returns the one to fetch; or
# refuses them with a UserError.
Choice: TypeAlias = Callable[[Sequence[Candidate]], Candidate]


def take_only(candidates: Sequence[Candidate]) -> Candidate:
    """The choice of a caller that has none: where there are several models, UserError names them."""
    if len(candidates) == 1:
        return candidates[0]
    first = candidates[0]
    raise several_models(first.repository, [str(candidate.file) for candidate in candidates])


def several_models(repository: str, names: Sequence[str]) -> UserError:
    """Return an error that one of these GGUF files has to be picked."""
    others = f"; others: {', '.join(names[1:20])}" if names[1:] else ""
    return UserError(
        f"model {repository} holds GGUF files: pick one, such as {repository}:{names[0]}{others}", param="model"
    )
