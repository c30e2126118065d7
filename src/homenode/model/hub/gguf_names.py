"""The files of a repository that are a GGUF model, by their names alone. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from homenode.errors import UserError
from homenode.model.formats.mmproj_names import is_mmproj

_PART = re.compile(r"-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf")


def gguf_models(names: Iterable[str]) -> list[str]:
    """The GGUF models among these files, by their names in order; of a split one the name of its first part."""
    found = sorted(name for name in names if name.endswith(".gguf") and not _is_no_model(PurePosixPath(name).name))
    return [name for name in found if (part := _PART.search(name)) is None or int(part["number"]) == 1]


def _is_no_model(name: str) -> bool:
    """Return whether a file holds no model of text: the part that sees, or statistics for quantising."""
    return is_mmproj(name) or "imatrix" in name.lower()


def parts_pattern(name: str) -> str:
    """The pattern, as of a shell, that all parts of the model have whose first part is `name`, or is any
    other part of.
    """
    return _PART.sub(lambda part: f"-?????-of-{part['count']}.gguf", name)


def parts_of(name: str, names: Iterable[str]) -> list[str]:
    """Return those of `names` that are parts of the model `name`, in order."""
    part = _PART.search(name)
    if part is None:
        return [other for other in names if other == name]
    pattern = re.compile(re.escape(name[: part.start()]) + rf"-[0-9]{{5}}-of-{part['count']}\.gguf")
    return sorted(other for other in names if pattern.fullmatch(other))


def pick_gguf(repository: str, names: Sequence[str], pick: str) -> str:
    """The model among the files `names` that somebody picks by its file's name, or by the quantisation in it. UserError
    where none is it, or several are.
    """
    if pick.endswith(".gguf"):
        if pick in names and ".." not in PurePosixPath(pick).parts:
            return pick
        raise UserError(
            f"model {repository}: it has no file {pick!r} (or it is not in the cache, if offline)", param="model"
        )
    tag = re.compile(rf"(?:^|[-._/]){re.escape(pick)}(?:[-./]|$)", re.IGNORECASE)  # Q4_K is not Q4_K_M
    models = gguf_models(names)
    found = [name for name in models if tag.search(name)]
    if not found:
        have = f"it has {', '.join(models[:20])}" if models else "look at its files on the Hub"
        raise UserError(
            f"model {repository}: none of its GGUF files is a {pick} (or it is not in the cache, if offline); {have}; "
            "give the quantisation or the name of one",
            param="model",
        )
    if len(found) > 1:
        raise UserError(
            f"model {repository}: several files are {pick}: {', '.join(found[:10])}; give the name of one",
            param="model",
        )
    return found[0]
