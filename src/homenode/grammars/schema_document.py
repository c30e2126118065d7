"""A JSON Schema as a document: its parts, where they stand, and what its references point to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from homenode.grammars.field_path import FieldPath, shown

MOST_VALUES = 100_000  # objects, lists, texts and numbers of a schema
DEEPEST_JSON = 120  # values within each other, below what llguidance's reader of JSON takes
DEEPEST_SCHEMA = 200  # schemas within each other, references followed

ALTERNATIVES = ("anyOf", "oneOf")
NAMED = ("properties", "patternProperties")
LISTS = ("prefixItems", "allOf", *ALTERNATIVES)
SINGLE = ("additionalProperties", "additionalItems", "items")


class SchemaDocument:
    """The schema `root`, which stands at `place`."""

    def __init__(self, root: Any, place: FieldPath) -> None:
        self.root, self.place = root, place

    def check_size(self) -> None:
        """UserError for a schema that is too deep or too large to be looked at."""
        count = 0
        left: list[tuple[Any, FieldPath, int]] = [(self.root, self.place, 0)]
        while left:
            value, place, depth = left.pop()
            count += 1
            if count > MOST_VALUES:
                raise place.refusal(f"the schema has more than {MOST_VALUES} values; ask for less")
            if depth > DEEPEST_JSON:
                raise place.refusal(f"the schema is more than {DEEPEST_JSON} levels deep; make it flatter")
            if isinstance(value, dict):
                left += [(each, place / key, depth + 1) for key, each in value.items()]
            elif isinstance(value, list):
                left += [(each, place / index, depth + 1) for index, each in enumerate(value)]

    def parts(self) -> Iterator[tuple[Any, FieldPath]]:
        """Each schema that the answer may come to, with its place; references are followed, and each is given once.

        UserError for a reference that leads nowhere, and for schemas too many levels within each other.
        """
        seen: set[int] = set()
        left: list[tuple[Any, FieldPath, int]] = [(self.root, self.place, 0)]
        while left:
            node, place, depth = left.pop()
            if isinstance(node, dict):
                if id(node) in seen:
                    continue
                seen.add(id(node))
            if depth > DEEPEST_SCHEMA:
                raise place.refusal(f"this is more than {DEEPEST_SCHEMA} schemas within each other; make it flatter")
            yield node, place
            if isinstance(node, dict):
                if "$ref" in node:
                    left.append((*self.target(node["$ref"], place / "$ref"), depth + 1))
                left += [(child, where, depth + 1) for child, where in children(node, place)]

    def target(self, reference: Any, place: FieldPath) -> tuple[Any, FieldPath]:
        """Return what a `$ref` at `place` points to, and where that stands. UserError for what cannot be followed."""
        if not isinstance(reference, str):
            raise place.refusal(f"a reference is a text, not {shown(reference)}")
        if reference != "#" and not reference.startswith("#/"):
            raise place.refusal(f"{shown(reference)} is not within this schema; only references such as "
                                '"#/$defs/name" can be followed')  # fmt: skip
        node, where = self.root, self.place
        for word in reference[2:].split("/") if reference != "#" else ():
            step: str | int = unquote(word).replace("~1", "/").replace("~0", "~")
            if isinstance(node, list) and str(step).isdecimal() and int(step) < len(node):
                step = int(step)
            elif not isinstance(node, dict) or step not in node:
                raise place.refusal(f"{shown(reference)} points to nothing: there is no {shown(step)} in `{where}`")
            node, where = node[step], where / step
        return node, where


def children(node: dict[str, Any], place: FieldPath) -> Iterator[tuple[Any, FieldPath]]:
    """The schemas directly within one. What has not the form of any is left out."""
    for word in NAMED:
        if isinstance(named := node.get(word), dict):
            yield from ((child, place / word / name) for name, child in named.items())
    for word in SINGLE:
        if word in node and not isinstance(node[word], list):
            yield node[word], place / word
    for word in (*LISTS, "items"):
        if isinstance(listed := node.get(word), list):
            yield from ((child, place / word / index) for index, child in enumerate(listed))
