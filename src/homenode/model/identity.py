"""The identity of the model that a process has read, so that those that work together can be held to have read the same
one.

All processes of a service have weights of one identity: those of an engine compare theirs before the first step, and
whoever takes the place of another one compares with what that had. An identity is of content, never of names, times or
places, so it is the same in every process, on every host, for every part of a model, however it was packed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from homenode.errors import CheckpointError
from homenode.model.files_read import other_text

if TYPE_CHECKING:
    from homenode.model.spec import ModelSpec  # brings NumPy, which an API server starts without

_DIGEST_BYTES = 16


class ModelIdentity(msgspec.Struct, frozen=True):
    """Digests in hexadecimal. `weights`: of all tensors, however they are spread over files. `files`: of those in each
    file, by its name. `figures`: of what its files say beside them. `texts`: of each file of text that was read, by its
    path; two processes need not have read the same ones.
    """

    weights: str
    files: dict[str, str]
    figures: str
    texts: dict[str, str] = {}


def figures_digest(spec: ModelSpec) -> str:
    """Return a digest of all that computing a model depends on beside its weights."""
    told = msgspec.json.encode(spec, order="deterministic", enc_hook=repr)
    return hashlib.blake2b(told, digest_size=_DIGEST_BYTES).hexdigest()


def model_difference(mine: ModelIdentity, theirs: ModelIdentity) -> str | None:
    """Say in words what `theirs` has that `mine` has not: a clause whose subject is a file; None where both are one."""
    if missing := sorted(mine.files.keys() ^ theirs.files.keys()):
        return f"{missing[0]} is among the files of weights of one of them only"
    if changed := next((name for name in sorted(mine.files) if mine.files[name] != theirs.files[name]), None):
        return f"{changed} holds other weights"
    if mine.weights != theirs.weights:
        return "the files of weights mean other tensors"
    if mine.figures != theirs.figures:
        return "what describes the model (config.json, or the metadata of a GGUF file) tells other figures"
    return text_difference(mine.texts, theirs.texts)


def text_difference(mine: Mapping[str, str], theirs: Mapping[str, str]) -> str | None:
    """The same of files of text alone, which are what API servers read."""
    path = other_text(mine, theirs)
    return None if path is None else f"{path} holds another text"


class CommonIdentity:
    """The model that all of a group have to have read: what the first of them had, who says so first. `model`: where it
    lies, for people.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._first: ModelIdentity | None = None

    def objection(self, who: str, identity: ModelIdentity | None) -> str | None:
        """Return why `who` (one of the group, in words) may not work with the others, for people; None where it may."""
        if identity is None:
            return None
        self._first = self._first or identity
        difference = model_difference(self._first, identity)
        return None if difference is None else replaced_sentence(who, self._model, difference)


def replaced_sentence(who: str, model: str, difference: str) -> str:
    """Return what is told of a process that has read other files than those it is to work with."""
    return (
        f"{who} has read another model at {model} than those it is to work with: {difference}. The files were replaced "
        "while the model was started or served: start the server again to serve what is there now, or put the earlier "
        "files back first"
    )


def refuse_other_texts(who: str, model: str, expected: Mapping[str, str], read: Mapping[str, str]) -> None:
    """CheckpointError where `who` has read another text of a file than those it is to work with, of which they have
    `expected`: digests by paths.
    """
    if (difference := text_difference(expected, read)) is not None:
        raise CheckpointError(replaced_sentence(who, model, difference))
