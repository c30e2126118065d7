"""The forms that structured output can be asked for, whichever API and field it came by."""

from __future__ import annotations

import re
from typing import Any

import msgspec


class JsonObject(msgspec.Struct, frozen=True, tag=True):
    """Any JSON object."""


class JsonSchema(msgspec.Struct, frozen=True, tag=True):
    """JSON that fits `schema`, a decoded JSON Schema (an object, true or false); properties come in its order.

    An object that names its properties and says nothing of others has no others, or a weak model would write them for
    ever. `strict`: as the OpenAI API means it. So it is with one that names none, and a `format` that cannot be kept is
    refused; elsewhere a format is a remark, as in JSON Schema.
    """

    schema: Any
    strict: bool = False


class Regex(msgspec.Struct, frozen=True, tag=True):
    """Text that matches `pattern` as a whole, in the syntax of Rust's regex crate."""

    pattern: str


class Choice(msgspec.Struct, frozen=True, tag=True):
    """One of these texts."""

    texts: list[str]


class Lark(msgspec.Struct, frozen=True, tag=True):
    """Text of the rule `start` of a Lark grammar, in the dialect of llguidance."""

    text: str


class Gbnf(msgspec.Struct, frozen=True, tag=True):
    """Text of the rule `root` of a grammar as llama.cpp writes them."""

    text: str


class StructuralTag(msgspec.Struct, frozen=True, tag=True):
    """Text with tagged parts: `description` is the object with the type "structural_tag", in either of its two
    forms."""

    description: dict[str, Any]


_OF_LARK = re.compile(r"^\s*(%(llguidance|import|ignore|declare)\b|[?!]*start(\.-?\d+)?\s*:(?!:=))", re.MULTILINE)

GrammarSpec = JsonObject | JsonSchema | Regex | Choice | Lark | Gbnf | StructuralTag


def grammar_text_spec(text: str) -> Lark | Gbnf:
    """The wish behind a grammar whose dialect nobody names: Lark where it has one of Lark's directives or a rule
    `start`.
    """
    return Lark(text) if _OF_LARK.search(text) else Gbnf(text)
