"""Structured output in the words of the OpenAI API, of vLLM and of llama.cpp: fields that say what an answer has to
be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from homenode.grammars.spec import Choice, GrammarSpec, JsonObject, JsonSchema, Regex, StructuralTag, grammar_text_spec
from homenode.server.core.generation_fields import GenerationFields
from homenode.server.http.failures import ApiError

SchemaValue = dict[str, Any] | bool
SchemaOrText = dict[str, Any] | bool | str  # a schema, or one as the text of its JSON
ChoiceTexts = Annotated[list[str], Meta(min_length=1, max_length=4096)]


class TextFormat(Struct, forbid_unknown_fields=True, kw_only=True, tag="text"):
    """Any text."""


class JsonObjectFormat(Struct, forbid_unknown_fields=True, kw_only=True, tag="json_object"):
    """A JSON object. `schema`: as llama.cpp takes one here."""

    schema: SchemaValue | None = None


class NamedSchema(Struct, forbid_unknown_fields=True, kw_only=True):
    """A JSON Schema. `strict`: objects that say nothing of further properties have none."""

    name: str | None = None
    description: str | None = None
    schema: SchemaValue | UnsetType = UNSET
    strict: bool | None = None


class JsonSchemaFormat(Struct, forbid_unknown_fields=True, kw_only=True, tag="json_schema"):
    """JSON that fits a schema."""

    json_schema: NamedSchema | None = None
    schema: SchemaValue | None = None  # as llama.cpp takes it here


class StructuralTagFormat(Struct, kw_only=True, tag="structural_tag"):
    """Text with tagged parts."""

    format: dict[str, Any] | UnsetType = UNSET
    structures: list[Any] | UnsetType = UNSET
    triggers: list[str] | UnsetType = UNSET


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat | StructuralTagFormat


class StructuredOutputs(Struct, forbid_unknown_fields=True, kw_only=True):
    """One of these, as vLLM takes them."""

    json: SchemaOrText | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: ChoiceTexts | None = None
    grammar: str | None = None
    structural_tag: dict[str, Any] | str | None = None


class StructuredFields(GenerationFields, kw_only=True):
    """The part that generating endpoints share about structured output."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaOrText | None = None
    guided_regex: str | None = None
    guided_choice: ChoiceTexts | None = None
    guided_grammar: str | None = None
    grammar: str | None = None
    json_schema: SchemaOrText | None = None


def output_of(body: StructuredFields) -> tuple[GrammarSpec, str] | None:
    """Return what an answer has to be, and the field that says so; None for any text.

    Raises ApiError 400 for several wishes at once, and for what is none.
    """
    wishes = list(_wishes(body))
    if len(wishes) > 1:
        (_, first), (_, second), *_ = wishes
        raise ApiError(
            400,
            f"`{first}` and `{second}` both say what the answer has to be; send one",
            param=second,
            code="invalid_value",
        )
    return wishes[0] if wishes else None


def _wishes(body: StructuredFields) -> Iterator[tuple[GrammarSpec, str]]:
    if body.response_format is not None:
        yield from _response_format(body.response_format)
    if body.structured_outputs is not None:
        yield from _structured_outputs(body.structured_outputs)
    for param in ("guided_json", "json_schema"):
        if (schema := getattr(body, param)) is not None:
            yield _schema(schema, param), param
    if body.guided_regex is not None:
        yield Regex(body.guided_regex), "guided_regex"
    if body.guided_choice is not None:
        yield Choice(body.guided_choice), "guided_choice"
    for param in ("guided_grammar", "grammar"):
        if text := getattr(body, param):  # clients of llama.cpp send an empty one for none
            yield grammar_text_spec(text), param


def _response_format(asked: ResponseFormat) -> Iterator[tuple[GrammarSpec, str]]:
    match asked:
        case JsonObjectFormat(schema=None):
            yield JsonObject(), "response_format"
        case JsonObjectFormat(schema=schema):
            yield JsonSchema(schema), "response_format.schema"
        case JsonSchemaFormat(json_schema=NamedSchema(schema=schema, strict=strict)) if schema is not UNSET:
            yield JsonSchema(schema, bool(strict)), "response_format.json_schema.schema"
        case JsonSchemaFormat(json_schema=None, schema=schema) if schema is not None:
            yield JsonSchema(schema), "response_format.schema"
        case JsonSchemaFormat():
            param = "response_format.json_schema"
            text = f"`{param}` has no `schema`, which says what the answer has to be"
            raise ApiError(400, text, param=param, code="missing_required_parameter")
        case StructuralTagFormat():
            yield StructuralTag(msgspec.to_builtins(asked)), "response_format"


def _structured_outputs(asked: StructuredOutputs) -> Iterator[tuple[GrammarSpec, str]]:
    place = "structured_outputs"
    before = (asked.json, asked.json_object or None, asked.regex, asked.choice, asked.grammar, asked.structural_tag)
    if all(wish is None for wish in before):
        text = f"`{place}` says nothing; give one of {', '.join(StructuredOutputs.__struct_fields__)}"
        raise ApiError(400, text, param=place, code="invalid_value")
    if asked.json is not None:
        yield _schema(asked.json, f"{place}.json"), f"{place}.json"
    if asked.json_object:
        yield JsonObject(), f"{place}.json_object"
    if asked.regex is not None:
        yield Regex(asked.regex), f"{place}.regex"
    if asked.choice is not None:
        yield Choice(asked.choice), f"{place}.choice"
    if asked.grammar is not None:
        yield grammar_text_spec(asked.grammar), f"{place}.grammar"
    if asked.structural_tag is not None:
        yield StructuralTag(_decoded(asked.structural_tag, f"{place}.structural_tag")), f"{place}.structural_tag"


def _schema(given: SchemaOrText, param: str) -> JsonSchema:
    return JsonSchema(_decoded(given, param))


def _decoded(given: Any, param: str) -> Any:
    """A value of JSON, given as such or as a text."""
    if not isinstance(given, str):
        return given
    try:
        return msgspec.json.decode(given)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ApiError(400, f"`{param}` is no JSON: {error}", param=param, code="invalid_value") from None
