"""Fields of a JSON body that its msgspec type does not have: found at every depth, and taken out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from msgspec import inspect

_MOST_TOLD = 100  # fields of one body
_LONGEST_NAME, _LONGEST_PLACE = 100, 400  # characters


class UnknownField(NamedTuple):
    """A field of a body. `place`: where it is, such as `messages[0].mood`."""

    name: str
    place: str


# From a value, its place, and the list of fields found so far to the value without unknown fields.
_Walk = Callable[[Any, str, list[UnknownField]], Any]


class KnownFields:
    """The fields of a msgspec type, and of the types within it that forbid unknown fields; others take what comes."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._structs: dict[type, _Walk] = {}

    @cached_property
    def _walk(self) -> _Walk | None:
        # When the first body has such a field: of all APIs together it would be a tenth of a server's start.
        return self._walk_of(inspect.type_info(self._kind))

    def strip(self, value: Any) -> tuple[Any, list[UnknownField]]:
        """`value`, as JSON decodes, without unknown fields; and the first hundred of those that are not null, which
        asks for nothing.
        """
        found: list[UnknownField] = []
        return self._walk(value, "", found) if self._walk else value, found

    def _walk_of(self, info: inspect.Type) -> _Walk | None:
        """None where nothing within can have unknown fields."""
        if isinstance(info, inspect.Metadata):
            return self._walk_of(info.type)
        if isinstance(info, inspect.StructType):
            return self._of_struct(info)
        if isinstance(info, inspect.ListType):
            return _of_list(self._walk_of(info.item_type))
        if isinstance(info, inspect.DictType):
            return _of_dict(self._walk_of(info.value_type))
        if isinstance(info, inspect.UnionType):
            return self._of_union(info)
        return None

    def _of_struct(self, info: inspect.StructType) -> _Walk | None:
        if not info.forbid_unknown_fields:
            return None
        if info.cls in self._structs:
            return lambda value, place, found: self._structs[info.cls](value, place, found)
        walks: dict[str, _Walk | None] = {}

        def walk(value: Any, place: str, found: list[UnknownField]) -> Any:
            if not isinstance(value, dict):
                return value
            kept = {}
            for name, entry in value.items():
                inner = f"{place}.{name}" if place else name
                if name in walks:
                    known = walks[name]
                    kept[name] = known(entry, inner, found) if known else entry
                elif entry is not None and len(found) < _MOST_TOLD:
                    found.append(UnknownField(name[:_LONGEST_NAME], inner[:_LONGEST_PLACE]))
            return kept

        self._structs[info.cls] = walk
        if info.tag_field is not None:
            walks[info.tag_field] = None
        walks.update((field.encode_name, self._walk_of(field.type)) for field in info.fields)
        return walk

    def _of_union(self, info: inspect.UnionType) -> _Walk | None:
        structs = {one.tag: self._of_struct(one) for one in info.types if isinstance(one, inspect.StructType)}
        tag_field = next((one.tag_field for one in info.types if isinstance(one, inspect.StructType)), None)
        others = [one for one in info.types if isinstance(one, inspect.ListType | inspect.DictType | inspect.Metadata)]
        lists = next((self._walk_of(one) for one in others if _is_list(one)), None)
        dicts = next((self._walk_of(one) for one in others if not _is_list(one)), None)
        if not structs and lists is None and dicts is None:
            return None

        def walk(value: Any, place: str, found: list[UnknownField]) -> Any:
            if isinstance(value, list) and lists is not None:
                return lists(value, place, found)
            if isinstance(value, dict):
                chosen = _chosen(structs, tag_field, value) if structs else dicts
                return chosen(value, place, found) if chosen else value
            return value

        return walk


def _chosen(structs: Mapping[Any, _Walk | None], tag_field: str | None, value: Mapping[str, Any]) -> _Walk | None:
    """Return what walks through one of several structs; None where its tag is that of none."""
    if tag_field is None:
        return next(iter(structs.values()))
    tag = value.get(tag_field)
    return structs.get(tag) if isinstance(tag, str | int) else None


def _is_list(info: inspect.Type) -> bool:
    return isinstance(info.type if isinstance(info, inspect.Metadata) else info, inspect.ListType)


def _of_list(walk: _Walk | None) -> _Walk | None:
    if walk is None:
        return None

    def each(value: Any, place: str, found: list[UnknownField]) -> Any:
        if not isinstance(value, list):
            return value
        return [walk(entry, f"{place}[{number}]", found) for number, entry in enumerate(value)]

    return each


def _of_dict(walk: _Walk | None) -> _Walk | None:
    if walk is None:
        return None

    def each(value: Any, place: str, found: list[UnknownField]) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: walk(entry, f"{place}.{name}", found) for name, entry in value.items()}

    return each
