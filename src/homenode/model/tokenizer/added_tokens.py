"""Special tokens that only a folder's tokenizer_config.json names, put into the text of its tokenizer.json.

The configuration lists them with their ids and flags (`added_tokens_decoder`), or names them by role. The library
gives new tokens the next free ids in the order of the list, so they are merged by id; places that no file names are
held by tokens that no text has, or all behind them would move up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer as Library

from homenode.errors import CheckpointError
from homenode.model.tokenizer.vocabularies.stop_tokens import token_text
from homenode.model.tokenizer.vocabularies.token_bytes import placeholder

_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_ROLES = (
    "bos_token", "eos_token", "eot_token", "eom_token", "unk_token", "pad_token", "sep_token", "cls_token",
    "mask_token",
)  # fmt: skip
_MOST_PLACES = 2**20  # more ids than any vocabulary has
_MOST_UNNAMED = 2**16  # more than any leaves unnamed among its added tokens


def missing_tokens(library: Library, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The added tokens of tokenizer_config.json that the library does not have, as entries of tokenizer.json's
    `added_tokens`.

    Raises CheckpointError for entries that are no tokens.
    """
    present = {int(index): token for index, token in library.get_added_tokens_decoder().items()}
    listed = [entry for entry in _listed(library, config) if not _same(present.get(entry["id"]), entry)]
    names = {token.content for token in present.values()} | {entry["content"] for entry in listed}
    return listed + [entry for entry in _named(library, config) if entry["content"] not in names]


def with_tokens(tokenizer_json: str, entries: list[dict[str, Any]]) -> str:
    """The text of a tokenizer.json with these tokens among its `added_tokens`; an entry replaces one of the same name
    or id.
    """
    form = json.loads(tokenizer_json)
    vocabulary = form.get("model", {}).get("vocab", {})
    taken = set(vocabulary.values()) if isinstance(vocabulary, dict) else set(range(len(vocabulary)))
    replaced = {entry["content"] for entry in entries}, {entry["id"] for entry in entries}
    kept = [
        t
        for t in form.get("added_tokens") or ()
        if t.get("content") not in replaced[0] and t.get("id") not in replaced[1]
    ]
    merged = sorted([*kept, *entries], key=lambda token: int(token["id"]))
    form["added_tokens"] = sorted([*merged, *_placeholders(merged, taken)], key=lambda token: int(token["id"]))
    return json.dumps(form, ensure_ascii=False)


def _listed(library: Library, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The entries of `added_tokens_decoder`. A token of the vocabulary keeps the id that it has there."""
    listed = config.get("added_tokens_decoder") or {}
    if not isinstance(listed, dict):
        raise CheckpointError("added_tokens_decoder in tokenizer_config.json must be an object of ids and tokens")
    entries = []
    for index, token in listed.items():
        text = token_text(token)
        if not str(index).isdecimal() or len(index) > 7 or int(index) >= _MOST_PLACES or text is None:
            raise CheckpointError(
                f"added_tokens_decoder in tokenizer_config.json holds {str(index)[:40]!r}: {str(token)[:80]}, which is "
                f"no token; ids go from 0 to {_MOST_PLACES - 1}, and tokens have a content"
            )
        known = library.token_to_id(text)
        entries.append(_entry(int(index) if known is None else int(known), token))
    return entries


def _named(library: Library, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Tokens that have a role, as far as they are in the vocabulary: another one would be an id without a row in the
    model.
    """
    extra = config.get("additional_special_tokens")
    tokens = [config.get(role) for role in _ROLES] + (extra if isinstance(extra, list) else [])
    found: dict[str, dict[str, Any]] = {}
    for token in tokens:
        text = token_text(token)
        index = None if text is None else library.token_to_id(text)
        if text is not None and index is not None:
            found.setdefault(text, _entry(int(index), token) | {"special": True})
    return list(found.values())


def _entry(index: int, token: Any) -> dict[str, Any]:
    given = token if isinstance(token, dict) else {}
    flags = {flag: bool(given.get(flag, False)) for flag in _FLAGS}
    return {"id": index, "content": token_text(token), **flags}


def _same(token: Any, entry: Mapping[str, Any]) -> bool:
    return token is not None and all(getattr(token, name) == entry[name] for name in ("content", *_FLAGS))


def _placeholders(merged: list[dict[str, Any]], taken: set[int]) -> list[dict[str, Any]]:
    """Tokens for the ids between the model's own vocabulary and the last added token that nobody names."""
    used = taken | {int(token["id"]) for token in merged}
    first, last = len(taken), max((int(token["id"]) for token in merged), default=-1)
    free = [index for index in range(first, last) if index not in used]
    if len(free) > _MOST_UNNAMED:
        raise CheckpointError(
            f"added_tokens_decoder in tokenizer_config.json goes up to {last}, but {len(free)} ids from {first} on "
            f"have no token; at most {_MOST_UNNAMED} may be left out"
        )
    return [_entry(index, placeholder(index)) for index in free]
