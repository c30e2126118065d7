"""The part of a JSON Schema that a grammar keeps: words that forbid nothing are gone, others are said in words that can
be kept, and what cannot be is left out and told. A value that fits a schema always fits what is kept of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from homenode.errors import UserError
from homenode.grammars.field_path import FieldPath
from homenode.grammars.kept_patterns import is_pattern, kept_pattern
from homenode.grammars.kept_words import rewrite, says_more
from homenode.grammars.schema_document import LISTS, NAMED, SINGLE, SchemaDocument
from homenode.json_types import JSON_TYPES, standard_types

PatternFault = Callable[[str], str | None]
# Schemas within which less may be kept; of `not` and `if` that would forbid more.
_WIDENED = ("propertyNames", "contains", "then", "else", "unevaluatedItems", "unevaluatedProperties")
_DEFINITIONS = ("$defs", "definitions")
_LONGEST_S = 3.0  # for all patterns of a schema
# Of JSON Schema and not kept. Other formats that are not known here are remarks, such as `int32` or `password`.
_FORMATS_NOT_KEPT = frozenset(
    ("idn-email", "idn-hostname", "iri", "iri-reference", "uri-reference", "uri-template", "json-pointer",
     "relative-json-pointer", "regex")
)  # fmt: skip


@dataclass(frozen=True)
class KeptSchema:
    """`schema`: what is kept. `left_out`: the places of words that are not."""

    schema: Any
    left_out: tuple[FieldPath, ...] = ()


def kept_schema(document: SchemaDocument, pattern_fault: PatternFault, *, strict: bool) -> KeptSchema:
    """Return what is kept of a schema whose size was checked. `pattern_fault`: why a regular expression cannot be kept,
    None if it can be. `strict`: nothing is left out that says anything; whoever checks the schema refuses it.
    """
    reducer = _SchemaReducer(document, pattern_fault, strict)
    schema = reducer.kept(document.root, document.place)
    return KeptSchema(schema, tuple(reducer.left_out))


class _SchemaReducer:
    """Copies the schemas of one document, less what is not kept."""

    def __init__(self, document: SchemaDocument, pattern_fault: PatternFault, strict: bool) -> None:
        self._document, self._pattern_fault, self._strict = document, pattern_fault, strict
        self._until = time.monotonic() + _LONGEST_S
        self.left_out: list[FieldPath] = []

    def kept(self, node: Any, place: FieldPath) -> Any:
        """A copy of a schema, or of what stands in its place."""
        if not isinstance(node, dict):
            return node
        found = {word: self._within(word, value, place / word) for word, value in node.items()}
        if not self._strict:
            self._mend_type(found)
            self._leave_looks(found, place)
            self._leave_references(found, place)
        left = rewrite(found, self._resolved)
        if left is None:
            return False
        for word in () if self._strict else left:
            del found[word]
            self.left_out.append(place / word)
        return found

    def _within(self, word: str, value: Any, place: FieldPath) -> Any:
        if isinstance(value, dict) and word in (*NAMED, *_DEFINITIONS, "dependentSchemas"):
            return {name: self.kept(each, place / name) for name, each in value.items()}
        if isinstance(value, list) and word in (*LISTS, "items"):
            return [self.kept(each, place / index) for index, each in enumerate(value)]
        return self.kept(value, place) if word in (*SINGLE, *_WIDENED) and isinstance(value, dict) else value

    def _resolved(self, node: Any) -> Any:
        """Return what a schema that is nothing but a reference refers to."""
        for _ in range(8):
            if not isinstance(node, dict) or not isinstance(node.get("$ref"), str) or says_more(node, "$ref"):
                return node
            try:
                node = self._document.target(node["$ref"], self._document.place)[0]
            except UserError:  # whoever checks the reference says so
                return node
        return node

    def _mend_type(self, found: dict[str, Any]) -> None:
        """Types by other spellings."""
        named = found.get("type")
        words = [named] if isinstance(named, str) else named
        if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
            return
        kinds = [standard_types(word) for word in words]
        if None in kinds:
            del found["type"]
            return
        names = [name for kind in kinds for name in JSON_TYPES if kind and name in kind]
        if all(kind and kind <= set(JSON_TYPES) for kind in kinds) and sorted(names) != sorted(words):
            found["type"] = names[0] if len(names) == 1 else list(dict.fromkeys(names))

    def _leave_looks(self, found: dict[str, Any], place: FieldPath) -> None:
        """What look-arounds forbid is not kept, what remains of their patterns is; and formats that are not kept."""
        pattern = found.get("pattern")
        if isinstance(pattern, str) and (rest := self._rest(pattern)) != pattern:
            found["pattern"] = rest
            if rest is None:
                del found["pattern"]
            self.left_out.append(place / "pattern")
        named = found.get("patternProperties")
        if isinstance(named, dict) and (wrong := [name for name in named if self._rest(name) != name]):
            found["patternProperties"] = {name: each for name, each in named.items() if name not in wrong}
            found["additionalProperties"] = True  # which those are now that the pattern named
            self.left_out += [place / "patternProperties" / name for name in wrong]
        if found.get("format") in _FORMATS_NOT_KEPT:
            self.left_out.append(place / "format")

    def _rest(self, pattern: str) -> str | None:
        """Return what is kept of a pattern; itself where it is none, which whoever checks it says, and when
        time is up.
        """
        if time.monotonic() > self._until or len(pattern) > 10_000 or not is_pattern(pattern):
            return pattern
        return kept_pattern(pattern, self._pattern_fault)

    def _leave_references(self, found: dict[str, Any], place: FieldPath) -> None:
        """References to other documents."""
        reference = found.get("$ref")
        if isinstance(reference, str) and reference and not reference.startswith("#"):
            del found["$ref"]
            self.left_out.append(place / "$ref")
        if "x-guidance" in found:  # settings of the grammar, which are none of a client's
            del found["x-guidance"]
            self.left_out.append(place / "x-guidance")
