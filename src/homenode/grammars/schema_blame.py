"""The part of a JSON Schema that llguidance cannot keep: it says what is wrong, and not where."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

from homenode.grammars.field_path import FieldPath
from homenode.grammars.matcher import grammar_fault
from homenode.grammars.schema_document import SchemaDocument, children
from homenode.grammars.schema_grammar import json_lark, written_schema

_ROOT = "x-root"
_MOST_TRIES = 300
_LONGEST_S = 3.0


def blamed_part(document: SchemaDocument, fault: str) -> tuple[FieldPath, str]:
    """The innermost part that cannot be kept by itself, and why; the whole schema and `fault` where each part can
    be."""
    moved = {_ROOT: _moved(written_schema(document, strict=False))}
    tries, begun, until = 0, len(document.place.steps()), time.monotonic() + _LONGEST_S
    node, place = document.root, document.place
    found = True
    while found and isinstance(node, dict):
        found = False
        inner = list(children(node, place))
        if "$ref" in node:
            inner.append(document.target(node["$ref"], place / "$ref"))
        for child, where in inner:
            tries += 1
            if tries > _MOST_TRIES or time.monotonic() > until:
                return place, fault
            reference = "".join(f"/{_escaped(step)}" for step in where.steps()[begun:])
            told = grammar_fault(f"start: {json_lark({**moved, '$ref': f'#/{_ROOT}{reference}'})}")
            if child is not False and told:
                node, place, fault, found = child, where, told, True
                break
    return place, fault


def _escaped(step: str | int) -> str:
    return quote(str(step).replace("~", "~0").replace("/", "~1"), safe="~$")


def _moved(value: Any) -> Any:
    """A copy of a schema whose references go to where the whole stands now."""
    if isinstance(value, list):
        return [_moved(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        word: f"#/{_ROOT}{each[1:]}" if word == "$ref" and isinstance(each, str) else _moved(each)
        for word, each in value.items()
    }
