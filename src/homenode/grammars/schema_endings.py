"""A check that every part of a schema can come to an end: a value of finite size that fits it.

A schema that requires itself within itself has none, and an answer bound by it would go on for ever.
"""

from __future__ import annotations

from typing import Any

from homenode.grammars.field_path import FieldPath
from homenode.grammars.schema_document import ALTERNATIVES, SchemaDocument
from homenode.grammars.schema_values import fixed_values, type_names


def check_endings(document: SchemaDocument) -> None:
    """UserError that names a part with no end."""
    parts = [(node, place) for node, place in document.parts() if isinstance(node, dict)][::-1]  # inner ones first
    ending: set[int] = set()  # by identity, those that are known to come to an end
    endings = _Endings(document, ending)
    grown = True
    while grown:
        grown = False
        for node, _ in parts:
            if id(node) not in ending and endings.ends(node):
                ending.add(id(node))
                grown = True
    left = [(node, place) for node, place in parts if id(node) not in ending]
    if left:
        _, place = min(left, key=lambda part: ("$ref" not in part[0], len(part[1].steps())))
        raise place.refusal("no value of finite size fits this: it requires itself, or what no value fits")


class _Endings:
    """One round of the search for parts that come to an end."""

    def __init__(self, document: SchemaDocument, ending: set[int]) -> None:
        self._document, self._ending = document, ending

    def ends(self, node: dict[str, Any]) -> bool:
        """Return whether that is known by now."""
        if fixed_values(node) is not None:
            return True
        if "$ref" in node and not self._known(self._document.target(node["$ref"], FieldPath(""))[0]):
            return False
        if not all(map(self._known, node.get("allOf", ()))):
            return False
        for word in ALTERNATIVES:
            if word in node and not any(map(self._known, node[word])):
                return False
        return any(self._type_ends(node, name) for name in type_names(node))

    def _known(self, node: Any) -> bool:
        return node is not False if isinstance(node, bool) else id(node) in self._ending

    def _type_ends(self, node: dict[str, Any], name: str) -> bool:
        if name == "object":
            properties = node.get("properties", {})
            others = node.get("additionalProperties", True)
            return all(self._known(properties.get(key, others)) for key in node.get("required", ()))
        if name == "array" and node.get("minItems", 0) > 0:
            first = node.get("prefixItems", node["items"] if isinstance(node.get("items"), list) else [])
            rest = (
                node.get("items", True)
                if not isinstance(node.get("items"), list)
                else node.get("additionalItems", True)
            )
            least = node["minItems"]
            return all(map(self._known, first[:least])) and (least <= len(first) or self._known(rest))
        return True
