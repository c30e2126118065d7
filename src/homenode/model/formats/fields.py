"""Typed access to what a file says of its model: config.json values and GGUF metadata, neither of which can be
believed.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import cast

from homenode.errors import CheckpointError, UnsupportedError
from homenode.model.formats.bounded_files import damaged, quoted

_INFINITY = {"__float__": "Infinity"}  # how transformers writes it


class Fields:
    """Reads values by key. A missing or null value is the default; CheckpointError for a value of another kind or out
    of range.
    """

    def __init__(
        self, path: Path, values: Mapping[str, object], prefix: str = "", spelled: Mapping[str, str] | None = None
    ) -> None:
        """`spelled`: keys that are asked for -> how the file spells them, for messages."""
        self.path = path
        self._values = values
        self._prefix = prefix
        self._spelled = spelled or {}

    def respelled(self, names: Mapping[str, str]) -> Fields:
        """The same where the file has other names for some keys: its own -> those that are asked for. Of two that are
        there the file's own counts.
        """
        there = {asked: own for own, asked in names.items() if self._prefix + own in self._values}
        values = {self._prefix + asked: self._values[self._prefix + own] for asked, own in there.items()}
        stored = cast(MutableMapping[str, object], self._values)  # which nobody writes to
        return Fields(self.path, ChainMap(values, stored), self._prefix, {**self._spelled, **there})

    def with_value(self, key: str, value: object) -> Fields:
        """The same with another value of `key`."""
        stored = cast(MutableMapping[str, object], self._values)  # which nobody writes to
        return Fields(self.path, ChainMap({self._prefix + key: value}, stored), self._prefix, self._spelled)

    def has(self, key: str) -> bool:
        """Return whether `key` has a value that is not null."""
        return self._values.get(self._prefix + key) is not None

    def is_null(self, key: str) -> bool:
        """Return whether `key` is there and null."""
        return self._prefix + key in self._values and not self.has(key)

    def value(self, key: str) -> object:
        """Whatever the value is, None when missing."""
        return self._values.get(self._prefix + key)

    def integer(self, key: str, default: int | None = None, *, minimum: int = 1, maximum: int = 2**31 - 1) -> int:
        """A whole number in [minimum, maximum]; an error when it is missing and there is no default."""
        found = self.optional_integer(key, minimum=minimum, maximum=maximum)
        value = default if found is None else found
        if value is None:
            raise self.wrong(key, None, f"a whole number from {minimum} to {maximum}")
        return value

    def optional_integer(self, key: str, *, minimum: int = 1, maximum: int = 2**31 - 1) -> int | None:
        """The same, None when missing. A per-layer list counts when all its values are equal."""
        value = self._values.get(self._prefix + key)
        if isinstance(value, list) and value and all(type(v) is int and v == value[0] for v in value):
            value = value[0]
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # some converters write 4096.0
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise self.wrong(key, value, f"a whole number from {minimum} to {maximum}")
        return value

    def per_layer(
        self, key: str, layers: int, default: int | None = None, *, minimum: int = 1, maximum: int = 2**31 - 1
    ) -> tuple[int, ...]:
        """Whole numbers in [minimum, maximum], one for each of `layers`: a list of that length, or one number for all;
        an error when it is missing and there is no default.
        """
        value = self._values.get(self._prefix + key)
        if not isinstance(value, list):
            return (self.integer(key, default, minimum=minimum, maximum=maximum),) * layers
        if len(value) != layers or not all(type(each) is int and minimum <= each <= maximum for each in value):
            raise self.wrong(key, value, f"a whole number from {minimum} to {maximum}, or a list of {layers}")
        return tuple(value)

    def marks_per_layer(self, key: str, layers: int) -> tuple[bool, ...] | None:
        """Return which of `layers` are marked, None when missing: a list of truth values of that length, or a period p,
        with which every p-th layer is not marked and, where p is 0, all are.
        """
        value = self._values.get(self._prefix + key)
        if value is None:
            return None
        if isinstance(value, list):
            if len(value) != layers or not all(type(each) in (bool, int) and each in (0, 1) for each in value):
                raise self.wrong(key, value, f"a list of {layers} truth values")
            return tuple(bool(each) for each in value)
        period = self.integer(key, minimum=0)
        return tuple(period == 0 or (layer + 1) % period != 0 for layer in range(layers))

    def number(
        self,
        key: str,
        default: float | None = None,
        *,
        least: float | None = None,
        above: float = 0.0,
        most: float = 1e12,
    ) -> float:
        """A finite number above `above` (or, given `least`, from that on) and up to `most`; an error when missing
        without a default.
        """
        found = self.optional_number(key, least=least, above=above, most=most)
        value = default if found is None else found
        if value is None:
            raise self.wrong(key, None, "a number")
        return value

    def optional_number(
        self, key: str, *, least: float | None = None, above: float = 0.0, most: float = 1e12
    ) -> float | None:
        """The same, None when missing."""
        value = self._values.get(self._prefix + key)
        if value is None:
            return None
        wanted = f"a number {f'above {above:g}' if least is None else f'from {least:g}'} and up to {most:g}"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, value, wanted)
        if not (above < value if least is None else least <= value) or not value <= most:  # written so that NaN fails
            raise self.wrong(key, value, wanted)
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._values.get(self._prefix + key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def is_text(self, key: str) -> bool:
        """Return whether `key` is there and a string."""
        return isinstance(self._values.get(self._prefix + key), str)

    def text(self, key: str, default: str = "") -> str:
        """A string."""
        value = self._values.get(self._prefix + key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(key, value, "a string")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings, empty when missing."""
        value = self._values.get(self._prefix + key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, value, "a list of strings")
        return tuple(value)

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers that are not negative, empty when missing."""
        value = self._values.get(self._prefix + key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
            raise self.wrong(key, value, "a list of whole numbers")
        return tuple(value)

    def numbers(self, key: str, *, above: float = 0.0, most: float = 1e12) -> tuple[float, ...]:
        """A list of numbers above `above` and up to `most`, empty when missing."""
        value = self._values.get(self._prefix + key)
        if value is None:
            return ()
        if isinstance(value, list):
            value = [math.inf if item == _INFINITY else item for item in value]
        if not isinstance(value, list) or not all(
            type(item) in (int, float) and above < item <= most for item in value
        ):
            raise self.wrong(key, value, f"a list of numbers above {above:g} and up to {most:g}")
        return tuple(float(item) for item in value)

    def table(self, key: str) -> Fields | None:
        """The object under `key` as Fields of its own, None when missing."""
        value = self._values.get(self._prefix + key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(key, value, "an object")
        return Fields(
            self.path, {f"{self._prefix}{key}.{name}": inner for name, inner in value.items()}, f"{self._prefix}{key}."
        )

    def optional_table(self, key: str) -> Fields | None:
        """The same, None also where the value is no object."""
        return self.table(key) if isinstance(self._values.get(self._prefix + key), dict) else None

    def names(self) -> tuple[str, ...]:
        """The keys there are."""
        return tuple(key.removeprefix(self._prefix) for key in self._values)

    def holds_tables(self) -> bool:
        """Return whether any value is an object."""
        return any(isinstance(value, dict) for value in self._values.values())

    def token_ids(self, key: str, vocab_size: int) -> tuple[int, ...]:
        """A token id or a list of them. Ids outside the vocabulary mean nothing and are left out: no row of the model
        can give them.
        """
        value = self._values.get(self._prefix + key)
        if value is None:
            return ()
        ids: dict[int, None] = {}  # keeps the order, once each
        for item in value if isinstance(value, list) else [value]:
            if not isinstance(item, int) or isinstance(item, bool):
                raise self.wrong(key, value, "a token id or a list of token ids")
            if 0 <= item < vocab_size:
                ids[item] = None
        return tuple(ids)

    def refuse_others(self, wanted: Mapping[str, object]) -> None:
        """UnsupportedError for a value other than the one by its key, which is what homenode runs; None there: any
        value is another. CheckpointError for one of another kind.
        """
        for key, value in wanted.items():
            seen = self.value(key)
            if isinstance(value, bool):
                seen = self.boolean(key, value)
            elif isinstance(value, str):
                seen = self.text(key, value)
            elif isinstance(value, int):
                seen = self.integer(key, value, minimum=0)
            elif isinstance(value, float):
                seen = self.number(key, value)
            if seen is not None and seen != value:
                name = self._prefix + self._spelled.get(key, key)
                raise UnsupportedError(
                    f"{self.path}: {name} {_written(seen)} is not supported; homenode wants {_written(value)}"
                )

    def wrong(self, key: str, seen: object, wanted: str) -> CheckpointError:
        """The error for the value of `key`, None when there is none."""
        return damaged(
            self.path,
            self._prefix + self._spelled.get(key, key),
            seen="nothing" if seen is None else quoted(seen),
            wanted=wanted,
            do="correct or fetch the model's configuration again",
        )


def _written(value: object) -> str:
    """A value as config.json has it, for a message."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return f"{value:g}" if isinstance(value, float) else quoted(value)
