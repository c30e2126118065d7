"""Words of JSON Schema that no grammar keeps as they are, each as far as it forbids nothing or can be said in others.

A rule changes a copy of a schema in place. It takes a word out where that says nothing more than what is there then; a
word that is left behind says more than a grammar can keep.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from homenode.grammars.schema_document import ALTERNATIVES
from homenode.grammars.schema_values import TYPES, fixed_values, same, type_names

Node = dict[str, Any]
Resolve = Callable[[Any], Any]  # from a schema that is a reference to what it refers to
_REMARKS = frozenset(
    ("title", "description", "default", "examples", "example", "$comment", "deprecated", "readOnly", "writeOnly", "$id",
     "$schema", "$anchor", "nullable", "contentEncoding", "contentMediaType", "contentSchema")
)  # fmt: skip
_PLAIN = frozenset(  # words whose meaning does not hang on those beside them
    ("type", "enum", "const", "required", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
     "minLength", "maxLength", "pattern", "minItems", "maxItems", "minProperties", "maxProperties")
)  # fmt: skip
_COMBINING = ("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas")


def rewrite(node: Node, resolve: Resolve) -> tuple[str, ...] | None:
    """Say in other words what can be said so; the words that are left and cannot be kept. None where nothing fits the
    schema.
    """
    if _never(node):
        return None
    for rule in (_unevaluated, _references, _not, _conditions, _names, _unique, _contains, _dependent, _counts):
        rule(node, resolve)
    words = (*_WORDS, *(_NUMBERS if _may_lack(node) else ()))
    return tuple(word for word in words if word in node)


_WORDS = (
    "not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems", "dependencies",
    "dependentRequired", "dependentSchemas", "propertyNames", "unevaluatedItems", "unevaluatedProperties",
    "$dynamicRef", "$recursiveRef",
)  # fmt: skip


_NUMBERS = ("minProperties", "maxProperties")


def allows_all(schema: Any) -> bool:
    """Return whether a schema says of no value that it does not fit."""
    return schema is True or (isinstance(schema, dict) and (schema.keys() <= _REMARKS or schema == {"not": False}))


def allows_none(schema: Any) -> bool:
    """Return whether a schema says of every value that it does not fit."""
    return schema is False or (isinstance(schema, dict) and _never(schema))


def says_more(schema: Node, word: str) -> bool:
    """Return whether a schema says anything but `word` of values."""
    return not schema.keys() - _REMARKS - {"$defs", "definitions"} <= {word}


def _never(node: Node) -> bool:
    return "not" in node and allows_all(node["not"])


def _also(node: Node, schema: Any) -> None:
    """Values have to fit `schema`, too."""
    if allows_all(schema):
        return
    if isinstance(schema, dict) and schema.keys() <= _PLAIN and not node.keys() & schema.keys():
        node.update(schema)
    elif isinstance(node.get("allOf", []), list):
        node["allOf"] = [*node.get("allOf", ()), schema]


def _references(node: Node, resolve: Resolve) -> None:
    """References whose targets may be replaced by documents around them, of which there are none."""
    for word in ("$recursiveRef", "$dynamicRef"):
        target = node.get(word)
        if isinstance(target, str) and (target == "#" or target.startswith("#/")) and "$ref" not in node:
            node["$ref"] = node.pop(word)


def _not(node: Node, resolve: Resolve) -> None:
    if "not" not in node:
        return
    refused = resolve(node["not"])
    if allows_none(refused):
        del node["not"]
    elif isinstance(refused, dict):
        words = refused.keys() - _REMARKS
        fixed = fixed_values(node)
        if words == {"not"}:
            del node["not"]
            _also(node, refused["not"])
        elif words == {"type"} and (kinds := _other_types(node, refused)) is not None:
            del node["not"]
            node["type"] = kinds[0] if len(kinds) == 1 else kinds
        elif words in ({"const"}, {"enum"}) and fixed is not None and (values := fixed_values(refused)) is not None:
            kept = [value for value in fixed if not any(same(value, each) for each in values)]
            _fix(node, kept)
            del node["not"]
        elif words == {"required"} and _forbid_property(node, refused["required"]):
            del node["not"]


def _other_types(node: Node, refused: Node) -> list[str] | None:
    """The types that are left without those that are refused; None where words cannot say that."""
    names, out = _types(node), set(_types(refused))
    if names is None or ("integer" in out and "number" not in out and "number" in names):
        return None
    out |= {"integer"} if "number" in out else set()
    if "type" not in node:
        names = [name for name in names if name != "integer"]  # which numbers are
    return [name for name in names if name not in out] or None


def _types(node: Node) -> list[str]:
    named = node.get("type")
    right = isinstance(named, str) or (isinstance(named, list) and all(isinstance(each, str) for each in named))
    return list(type_names(node)) if right else list(TYPES)


def _fix(node: Node, values: list[Any]) -> None:
    if values:
        node.pop("const", None)
        node["enum"] = values


def _forbid_property(node: Node, names: Any) -> bool:
    properties = node.get("properties", {})
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        return False
    if node.get("type") != "object" or not isinstance(properties, dict):
        return False
    node["properties"] = {**properties, names[0]: False}
    return True


def _conditions(node: Node, resolve: Resolve) -> None:
    condition = resolve(node.get("if"))
    if "if" in node and allows_all(condition):
        _also(node, node.get("then", True))
    elif "if" in node and allows_none(condition):
        _also(node, node.get("else", True))
    elif "if" in node and not all(allows_all(node.get(word, True)) for word in ("then", "else")):
        return
    for word in ("if", "then", "else"):
        node.pop(word, None)


def _names(node: Node, resolve: Resolve) -> None:
    """Names that properties have to fit."""
    if "propertyNames" not in node:
        return
    asked = resolve(node["propertyNames"])
    if "object" not in _types(node) or allows_all(asked) or _any_text(asked):
        del node["propertyNames"]
    elif (names := _texts(asked, resolve, 0)) is not None:
        if _name_all(node, names):
            del node["propertyNames"]
    elif (pattern := _pattern_of(asked)) is not None and not _has_names(node):
        node["patternProperties"] = {pattern: node.get("additionalProperties", True)}
        node["additionalProperties"] = False
        if len(asked.keys() & {"pattern", "minLength", "maxLength"}) == 1:
            del node["propertyNames"]


def _has_names(node: Node) -> bool:
    return bool(node.get("properties") or node.get("patternProperties"))


def _pattern_of(schema: Any) -> str | None:
    """A pattern that texts of a schema match, which says no more than one or lengths; None where there is none."""
    if not isinstance(schema, dict) or not schema.keys() - _REMARKS <= {"type", "pattern", "minLength", "maxLength"}:
        return None
    if isinstance(schema.get("pattern"), str):
        return str(schema["pattern"])
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    return rf"^[\s\S]{{{least},{most}}}$" if isinstance(least, int) and isinstance(most, int | str) else None


def _any_text(schema: Any) -> bool:
    if not isinstance(schema, dict) or not schema.keys() - _REMARKS <= {"type", "minLength"}:
        return False
    return "string" in _types(schema) and schema.get("minLength", 0) == 0


def _texts(schema: Any, resolve: Resolve, depth: int) -> list[str] | None:
    """The texts that a schema allows; None where they are not listed."""
    schema = resolve(schema)
    if schema is False or (isinstance(schema, dict) and _types(schema) and "string" not in _types(schema)):
        return []
    if (
        not isinstance(schema, dict)
        or depth > 4
        or not schema.keys() - _REMARKS <= {"type", "enum", "const", *ALTERNATIVES}
    ):
        return None
    words = schema.keys() & {"enum", "const", *ALTERNATIVES}
    if len(words) != 1:
        return None
    if (fixed := fixed_values(schema)) is not None:
        return [value for value in fixed if isinstance(value, str)]
    options = schema[words.pop()]
    parts = [_texts(part, resolve, depth + 1) for part in options] if isinstance(options, list) else [None]
    return None if None in parts else [name for part in parts for name in part or ()]


def _name_all(node: Node, names: list[str]) -> bool:
    """Allow these properties and no others. A number of properties is kept of a pattern, and not of names that may be
    missing. False where `patternProperties` say which are.
    """
    properties, others = node.get("properties", {}), node.get("additionalProperties", True)
    if not isinstance(properties, dict) or node.get("patternProperties"):
        return False
    node["additionalProperties"] = False
    if node.keys() & {"minProperties", "maxProperties"} and not properties and names and others is not False:
        node.pop("properties", None)
        node["patternProperties"] = {f"^({'|'.join(map(re.escape, names))})$": others}
        return True
    added = {} if others is False else {name: others for name in names if name not in properties}
    node["properties"] = {**{name: each for name, each in properties.items() if name in names}, **added}
    return True


def _unique(node: Node, resolve: Resolve) -> None:
    """A list of different values has no more of them than there are."""
    if node.get("uniqueItems", False) is False:
        node.pop("uniqueItems", None)
        return
    first, rest, most = node.get("prefixItems", []), node.get("items", True), node.get("maxItems")
    first = first if isinstance(first, list) else []
    if rest is False:
        most = min(len(first), most) if isinstance(most, int) else len(first)
    if "array" not in _types(node) or (isinstance(most, int) and most <= 1):
        del node["uniqueItems"]
        return
    if not first and (count := _count(resolve(rest))) is not None:
        node["maxItems"] = min(count, most) if isinstance(most, int) else count
        if count <= 1:
            del node["uniqueItems"]


def _count(schema: Any) -> int | None:
    """Return how many values fit; None where they are not listed."""
    if not isinstance(schema, dict):
        return None
    if (fixed := fixed_values(schema)) is not None:
        return len(fixed)
    sizes = {"null": 1, "boolean": 2}
    names = _types(schema)
    return sum(sizes[name] for name in names) if all(name in sizes for name in names) else None


def _contains(node: Node, resolve: Resolve) -> None:
    """So many items have to fit that there are as many at least."""
    least, most = node.get("minContains", 1), node.get("maxContains")
    wanted = resolve(node.get("contains", True))
    counts = all(isinstance(count, int) and count >= 0 for count in (least, 0 if most is None else most))
    if "contains" not in node or "array" not in _types(node) or (counts and least == 0 and most is None):
        for word in ("contains", "minContains", "maxContains"):
            node.pop(word, None)
        return
    if not counts:
        return
    if isinstance(known := node.get("minItems", 0), int):
        node["minItems"] = max(known, least)
    if allows_all(wanted) or (node.get("items") == node["contains"] and "prefixItems" not in node):
        if most is not None:
            node["maxItems"] = min(most, node.get("maxItems", most))
        for word in ("contains", "minContains", "maxContains"):
            node.pop(word, None)


def _dependent(node: Node, resolve: Resolve) -> None:
    """Require what goes along with a property that is required itself; nothing goes along with one that cannot be."""
    required = node.get("required", [])
    if not isinstance(required, list):
        return
    for word in ("dependentRequired", "dependentSchemas", "dependencies"):
        rules = node.get(word)
        if not isinstance(rules, dict):
            continue
        left = {}
        for name, rule in rules.items():
            known = node.get("required", required)
            names = [each for each in rule if isinstance(each, str)] if isinstance(rule, list) else []
            if names and name in known:
                node["required"] = [*known, *(each for each in names if each not in known)]
            elif isinstance(rule, dict | bool) and name in known and node.get("type") == "object":
                _also(node, rule)
            elif not (_cannot_be(node, name) or allows_all(rule) or (isinstance(rule, list) and {*names} <= {*known})):
                left[name] = rule
        node[word] = left
        if not left:
            del node[word]


def _cannot_be(node: Node, name: str) -> bool:
    properties = node.get("properties")
    if isinstance(properties, dict) and name in properties:
        return properties[name] is False
    return node.get("additionalProperties") is False and not node.get("patternProperties")


def _unevaluated(node: Node, resolve: Resolve) -> None:
    """Where nothing is combined, properties and items that nothing was said of are the others."""
    combined = any(word in node for word in _COMBINING)
    for word, others in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
        if word not in node:
            continue
        if allows_all(node[word]) or isinstance(node.get(others), dict | bool):
            del node[word]
        elif not combined and others not in node and not (others == "items" and "contains" in node):
            node[others] = node.pop(word)


def _may_lack(node: Node) -> bool:
    """Return whether an object has properties that may be missing, beside which a number of properties is not kept."""
    properties, required = node.get("properties"), node.get("required", ())
    return isinstance(properties, dict) and isinstance(required, list | tuple) and not properties.keys() <= {*required}


def _counts(node: Node, resolve: Resolve) -> None:
    """Numbers of properties that the names say already."""
    required, properties = node.get("required", ()), node.get("properties", {})
    if not isinstance(required, list | tuple) or not isinstance(properties, dict):
        return
    least, most = node.get("minProperties"), node.get("maxProperties")
    if isinstance(least, int) and 0 <= least <= len({*map(str, required)}):
        del node["minProperties"]
    closed = node.get("additionalProperties") is False and not node.get("patternProperties")
    if closed and properties and isinstance(most, int) and most >= len(properties):
        del node["maxProperties"]
