"""Parts that the types of the fields of structured output cannot say in the OpenAPI document: which values can be kept.
Of the spellings that mean the same the document has one; docs/structured-output.md has all.
"""

from __future__ import annotations

from typing import Any

from homenode.server.apis.openai.structured import (
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedSchema,
    StructuralTagFormat,
    StructuredOutputs,
)

_SCHEMA: dict[str, Any] = {
    "enum": [{}, {"type": "object"}, {"enum": ["yes", "no"]}, True],
    "description": "Or any other JSON Schema with words that can be kept.",
}
_TAG_FORMAT: dict[str, Any] = {
    "enum": [{"type": "const_string", "value": "yes"}, {"type": "any_text"}],
    "description": "Or a format of another type.",
}
_SPELLINGS = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "grammar", "json_schema")


def tighten_structured(components: dict[str, Any], schema: dict[str, Any]) -> None:
    """`schema`: of a request with the fields."""
    for name in _SPELLINGS:
        schema["properties"].pop(name)
    schema["properties"]["structured_outputs"]["description"] = "Not beside a `response_format` other than text."
    outputs = components[StructuredOutputs.__name__]
    choice = outputs["properties"]["choice"]
    outputs["properties"] = {"choice": choice["anyOf"][0] if "anyOf" in choice else choice}
    outputs["required"] = ["choice"]
    outputs["description"] = (
        "In place of `choice` there may be `json`, `json_object`, `regex`, `grammar` or `structural_tag`."
    )
    named = components[NamedSchema.__name__]
    named["properties"]["schema"] = _SCHEMA
    named["required"] = ["schema"]
    components[JsonObjectFormat.__name__]["properties"].pop("schema", None)
    whole = components[JsonSchemaFormat.__name__]
    whole["properties"]["json_schema"] = {"$ref": f"#/components/schemas/{NamedSchema.__name__}"}
    whole["properties"].pop("schema", None)
    whole["required"] = list(dict.fromkeys([*whole.get("required", ()), "json_schema"]))
    tag = components[StructuralTagFormat.__name__]
    for name in ("structures", "triggers"):
        tag["properties"].pop(name, None)
    tag["properties"]["format"] = _TAG_FORMAT
    tag["required"] = list(dict.fromkeys([*tag.get("required", ()), "format"]))
