"""The answer to a path that no API has: which path its client may have meant."""

from __future__ import annotations

from collections.abc import Sequence

from homenode.spelling import with_suggestion

_LONGEST = 200  # characters that are shown
_ROOTS = ("/v1", "/api")  # where paths of APIs begin


def unknown_path(path: str, known: Sequence[str]) -> str:
    """The message about a path that is not among `known`, with the one that it may be a part or a misspelling of."""
    message = f"there is no {path[:_LONGEST]} here; /openapi.json lists what there is"
    meant = _with_root(path.rstrip("/"), known)
    if meant is not None:
        return f"{message}. Did you mean {meant}? (The address that clients are given ends with {_root_of(meant)}.)"
    return with_suggestion(message, path, known)


def _with_root(path: str, known: Sequence[str]) -> str | None:
    """The path with the beginning that it lacks, or without what stands twice in it or in front of it."""
    candidates = [root + path for root in _ROOTS]
    candidates += [path[at:] for root in _ROOTS if (at := path.rfind(root + "/")) >= 0]
    candidates.append(path)
    return next((each for each in candidates if each in known), None)


def _root_of(path: str) -> str:
    return next((root for root in _ROOTS if path.startswith(root + "/")), "nothing behind its port")
