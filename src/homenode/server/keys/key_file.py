"""The file of --api-key-file: from TOML to keys, and every way in which it can be wrong.

    [keys.ada]
    key = "sk-..."
    requests_per_minute = 60
    tokens_per_minute = 20000
    concurrent_requests = 4
    service_tiers = ["default", "flex"]

No message holds a secret.
"""

from __future__ import annotations

import re
import stat
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from homenode.errors import UserError
from homenode.server.keys.named_key import UNNAMED_ROW, NamedKey, digest_of
from homenode.server.keys.service_tiers import ServiceTier
from homenode.spelling import with_suggestion

MOST_KEYS = 1023  # names in one life of a server: each has a row of its own, beside the one of the unnamed
_LARGEST_FILE = 1 << 20  # bytes
_LARGEST_LIMIT = 10**12
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SECRET = re.compile(r"[!-~]{1,512}")  # what a header can carry
_LIMITS = ("requests_per_minute", "tokens_per_minute", "concurrent_requests")
_FIELDS = ("key", *_LIMITS, "service_tiers", "models", "admin")
_MOST_NAMES = 1000  # of models
_TIERS = get_args(ServiceTier)


class KeyRows:
    """A row for each name that was ever in the file, so that what a name has used outlives a change of its key."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}

    def of(self, name: str) -> int:
        """The row of a name. Raises UserError when there were too many names."""
        if name not in self._rows:
            if len(self._rows) >= MOST_KEYS:
                raise UserError(f"there were more than {MOST_KEYS} names since the start; start the server again")
            self._rows[name] = UNNAMED_ROW + 1 + len(self._rows)
        return self._rows[name]


def read_key_file(path: str, rows: KeyRows, unnamed: Sequence[NamedKey] = ()) -> tuple[NamedKey, ...]:
    """The keys of the file. `unnamed`: those of --api-key, of which none may be in the file as well.

    Raises UserError that names the file and what is wrong in it.
    """
    try:
        keys = _keys(_tables(Path(path)), rows)
        _check_different(keys, unnamed)
        return keys
    except UserError as error:
        raise UserError(f"--api-key-file {path}: {error.message}", param="api_key_file") from error


def readable_by_others(path: str) -> bool:
    """Return whether other users of this machine can read the file."""
    try:
        return bool(Path(path).stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))
    except OSError:
        return False


def _tables(path: Path) -> Mapping[str, Any]:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UserError("it is no regular file")
        if status.st_size > _LARGEST_FILE:
            raise UserError(f"it has {status.st_size} bytes; at most {_LARGEST_FILE} are read")
        with path.open("rb") as file:
            text = file.read(_LARGEST_FILE).decode("utf-8")
    except OSError as error:
        raise UserError(f"it cannot be read ({error.strerror})") from error
    except UnicodeDecodeError:
        raise UserError("it is no UTF-8 text") from None
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UserError(f"it is not TOML: {_place(error)}") from None
    if unknown := [name for name in document if name != "keys"]:
        raise UserError(
            with_suggestion(f"`{_shown(unknown[0])}` is none of its tables; write [keys.NAME]", unknown[0], ("keys",))
        )
    tables = document.get("keys")
    if not isinstance(tables, dict) or not tables:
        raise UserError("it has no key; write a table [keys.NAME] with `key` for each")
    return tables


def _place(error: Exception) -> str:
    """Return where a TOML text is wrong: the parser's words may quote the text, which may be a secret."""
    found = re.search(r"\(at [a-z0-9 ,]+\)", str(error))
    return f"it cannot be understood {found.group()}" if found else "it cannot be understood"


def _keys(tables: Mapping[str, Any], rows: KeyRows) -> tuple[NamedKey, ...]:
    if len(tables) > MOST_KEYS:
        raise UserError(f"it has {len(tables)} keys; at most {MOST_KEYS} are taken")
    return tuple(_key(name, table, rows) for name, table in tables.items())


def _key(name: str, table: Any, rows: KeyRows) -> NamedKey:
    if not _NAME.fullmatch(name):
        raise UserError(f"the name `{_shown(name)}` is not 1 to 64 letters, digits, dots, dashes and underscores")
    if not isinstance(table, dict):
        raise UserError(f"keys.{name} is no table; write [keys.{name}] and `key` below it")
    if unknown := [field for field in table if field not in _FIELDS]:
        text = f"keys.{name} has the field `{_shown(unknown[0])}`; there are {', '.join(_FIELDS)}"
        raise UserError(with_suggestion(text, unknown[0], _FIELDS))
    secret = table.get("key")
    if not isinstance(secret, str) or not _SECRET.fullmatch(secret):
        raise UserError(f"keys.{name}.key is not a text of 1 to 512 printable ASCII characters without blanks")
    limits: dict[str, Any] = {field: _limit(name, field, table[field]) for field in _LIMITS if field in table}
    if "service_tiers" in table:
        limits["service_tiers"] = _tiers(name, table["service_tiers"])
    if "models" in table:
        limits["models"] = _models(name, table["models"])
    if "admin" in table:
        limits["admin"] = _switch(name, "admin", table["admin"])
    return NamedKey(digest=digest_of(secret), name=name, row=rows.of(name), **limits)


def _limit(name: str, field: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= _LARGEST_LIMIT:
        raise UserError(
            f"keys.{name}.{field} is not a whole number from 1 to {_LARGEST_LIMIT}; leave it out for no limit"
        )
    return value


def _tiers(name: str, value: Any) -> tuple[ServiceTier, ...]:
    names = value if isinstance(value, list) else []
    if not names or any(each not in _TIERS or names.count(each) > 1 for each in names):
        known = ", ".join(f'"{tier}"' for tier in _TIERS)
        raise UserError(
            f"keys.{name}.service_tiers is not a list of some of {known}, each once; the first is that of requests "
            "which leave it open"
        )
    return tuple(names)


def _models(name: str, value: Any) -> tuple[str, ...]:
    names = value if isinstance(value, list) else []
    if not 0 < len(names) <= _MOST_NAMES or not all(isinstance(each, str) and 0 < len(each) <= 200 for each in names):
        raise UserError(f"keys.{name}.models is not a list of names of models; leave it out for all of them")
    return tuple(names)


def _switch(name: str, field: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise UserError(f"keys.{name}.{field} is neither true nor false")
    return value


def _check_different(keys: Sequence[NamedKey], unnamed: Sequence[NamedKey]) -> None:
    owners = {key.digest: "--api-key" for key in unnamed}
    for key in keys:
        if key.digest in owners:
            raise UserError(f"keys.{key.name} has the same key as {owners[key.digest]}; give each a key of its own")
        owners[key.digest] = f"keys.{key.name}"


def _shown(text: str) -> str:
    return ascii(text[:80])[1:-1]
