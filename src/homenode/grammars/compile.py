"""The way from a wish to a grammar: checked, bounded in size and time, and remembered."""

from __future__ import annotations

import functools
import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import msgspec

from homenode.errors import UserError
from homenode.grammars.field_path import FieldPath, shown
from homenode.grammars.gbnf import gbnf_lark
from homenode.grammars.kept_schema import KeptSchema, kept_schema
from homenode.grammars.literal import lark_literal
from homenode.grammars.matcher import grammar_fault, try_grammar_text
from homenode.grammars.schema_blame import blamed_part
from homenode.grammars.schema_check import check_schema
from homenode.grammars.schema_document import SchemaDocument
from homenode.grammars.schema_grammar import json_lark, written_schema
from homenode.grammars.spec import (
    Choice,
    Gbnf,
    GrammarSpec,
    JsonObject,
    JsonSchema,
    Lark,
    Regex,
    StructuralTag,
    grammar_text_spec,
)
from homenode.grammars.structural_tags import structural_tag_lark
from homenode.grammars.vocabulary import Vocabulary

_LARGEST = 2**20  # bytes of a wish
_LONGEST_TEXT = 2**17  # characters of a grammar or a pattern that a client wrote
_DEEPEST_TEXT = 200  # brackets within each other, in the same
_MOST_RULES = 1500  # of a grammar in Lark
_KEPT = 256


@dataclass(frozen=True)
class CompiledGrammar:
    """`text`: a grammar in Lark, in the dialect of llguidance, with the rule `start`; what `SamplingParams.grammar`
    carries. As `%lark { ... }` it can be a part of another. `left_out`: places of words of a schema that it does not
    keep.
    """

    text: str
    left_out: tuple[FieldPath, ...] = ()


class _Memory:
    """Grammars and refusals by the hash of what was asked for. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[int, bytes], CompiledGrammar | UserError] = OrderedDict()

    def find(self, key: tuple[int, bytes]) -> CompiledGrammar | UserError | None:
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
            return self._known.get(key)

    def keep(self, key: tuple[int, bytes], found: CompiledGrammar | UserError) -> None:
        with self._lock:
            self._known[key] = found
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)


_memory = _Memory()


def compile_grammar(spec: GrammarSpec, vocabulary: Vocabulary, param: str) -> CompiledGrammar:
    """The grammar of `spec`, from memory where it was made before. Takes up to some seconds; for any thread.

    Raises UserError for what cannot be kept, is impossible or too large; it names the place, beginning with `param`,
    the field that the wish came by.
    """
    asked = _encoded(spec, FieldPath(param))
    key = (id(vocabulary), hashlib.blake2b(param.encode() + b"\0" + asked, digest_size=32).digest())
    found = _memory.find(key)
    if found is None:
        try:
            found = _tried(spec, vocabulary, FieldPath(param))
        except UserError as error:
            found = error
        _memory.keep(key, found)
    if isinstance(found, UserError):
        raise UserError(found.message, param=found.param)
    return found


def try_grammar(text: str, vocabulary: Vocabulary, param: str) -> CompiledGrammar:
    """A grammar in Lark that was written here, once it was tried with the vocabulary. As `compile_grammar`
    otherwise."""
    key = (id(vocabulary), hashlib.blake2b(text.encode(), digest_size=32).digest())
    found = _memory.find(key)
    if found is None:
        try:
            try_grammar_text(vocabulary, text)
            found = CompiledGrammar(text)
        except ValueError as error:
            found = FieldPath(param).refusal(f"this cannot be kept: {error}")
        _memory.keep(key, found)
    if isinstance(found, UserError):
        raise UserError(found.message, param=found.param)
    return found


def _encoded(spec: GrammarSpec, place: FieldPath) -> bytes:
    try:
        asked = msgspec.json.encode(spec)
    except (RecursionError, UnicodeEncodeError, TypeError):
        raise place.refusal("it is nested too deeply, or no JSON") from None
    if len(asked) > _LARGEST:
        raise place.refusal(f"it has {len(asked)} bytes; at most {_LARGEST} are taken")
    return asked


def keep_schema(schema: Any, place: FieldPath, *, strict: bool) -> KeptSchema:
    """Return what grammars keep of a schema. UserError for one that is too large, or of which something strict is not
    kept.
    """
    document = SchemaDocument(schema, place)
    document.check_size()
    return kept_schema(document, functools.cache(_pattern_fault), strict=strict)


def _tried(spec: GrammarSpec, vocabulary: Vocabulary, place: FieldPath) -> CompiledGrammar:
    left_out: list[FieldPath] = []
    text = _lark(spec, place, left_out)
    try:
        try_grammar_text(vocabulary, text)
    except ValueError as error:
        fault = str(error)
        if isinstance(spec, JsonSchema):
            document = SchemaDocument(keep_schema(spec.schema, place, strict=spec.strict).schema, place)
            place, fault = blamed_part(document, fault)
            text = f"start: {json_lark(written_schema(document, strict=spec.strict), lenient=True)}"
            if not spec.strict and _is_kept(vocabulary, text):
                return CompiledGrammar(text, (*left_out, place))
        raise place.refusal(f"this cannot be kept: {fault}") from None
    return CompiledGrammar(text, tuple(dict.fromkeys(left_out)))


def _is_kept(vocabulary: Vocabulary, text: str) -> bool:
    try:
        try_grammar_text(vocabulary, text)
    except ValueError:
        return False
    return True


def _lark(spec: GrammarSpec, place: FieldPath, left_out: list[FieldPath]) -> str:
    """A whole grammar; what it does not keep is added to `left_out`. UserError that names the place."""
    match spec:
        case Lark(text):
            _check_text(text, place)
            if text.count(":") > _MOST_RULES:
                raise place.refusal(f"the grammar has more than {_MOST_RULES} rules")
            return text
        case Gbnf(text):
            _check_text(text, place)
            return gbnf_lark(text, place)
        case StructuralTag(description):
            return structural_tag_lark(description, functools.partial(_tag_content, left_out), place)
        case Choice(texts):
            return _choice_lark(texts, place)
    return f"start: {_body(spec, place, left_out)}"


def _body(spec: JsonObject | JsonSchema | Regex, place: FieldPath, left_out: list[FieldPath]) -> str:
    """The body of a rule."""
    match spec:
        case JsonObject():
            return json_lark({"type": "object"})
        case JsonSchema(schema, strict):
            kept = keep_schema(schema, place, strict=strict)
            document = SchemaDocument(kept.schema, place)
            left_out += [*kept.left_out, *check_schema(document, _pattern_fault, strict=strict)]
            return json_lark(written_schema(document, strict=strict))
        case Regex(pattern):
            _check_text(pattern, place)
            return _regex_body(pattern, place)


def _choice_lark(texts: list[str], place: FieldPath) -> str:
    if not texts:
        raise place.refusal("there is nothing to choose from")
    return f"start: CHOICE\nCHOICE: {' | '.join(map(lark_literal, dict.fromkeys(texts)))}"


def _regex_body(pattern: str, place: FieldPath) -> str:
    from llguidance import regex_to_lark

    if not pattern:
        raise place.refusal("an empty pattern binds nothing")
    body = f"/{regex_to_lark(pattern, 'd')}/"
    if fault := grammar_fault(f"start: {body}"):
        raise place.refusal(f"{shown(pattern)} is no regular expression that can be kept: {fault}")
    return body


def _tag_content(left_out: list[FieldPath], kind: str, value: Any, place: FieldPath) -> str:
    """The body of a rule for what a tag holds."""
    if kind == "json_schema":
        return _body(JsonSchema(value), place, left_out)
    if kind == "regex":
        return _body(Regex(value), place, left_out)
    return f"%lark {{\n{_lark(grammar_text_spec(value), place, left_out)}\n}}"


def _pattern_fault(pattern: str) -> str | None:
    """Return why `pattern` is none that a schema may have."""
    if len(pattern) > _LONGEST_TEXT or _depth(pattern) > _DEEPEST_TEXT:
        return "it is too long or nested too deeply"
    return grammar_fault(f"start: {json_lark({'type': 'string', 'pattern': pattern})}")


def _check_text(text: str, place: FieldPath) -> None:
    if len(text) > _LONGEST_TEXT:
        raise place.refusal(f"it has {len(text)} characters; at most {_LONGEST_TEXT} are taken")
    if _depth(text) > _DEEPEST_TEXT:
        raise place.refusal(f"more than {_DEEPEST_TEXT} brackets are open within each other")


def _depth(text: str) -> int:
    """The most brackets that are open at once, whatever they stand for."""
    deepest = depth = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}" and depth:
            depth -= 1
    return deepest
