"""Strings that fit a JSON Schema, as terminals of a grammar: the texts themselves, without quotes or escapes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from homenode.chat.grammars.lark import ANY, literal
from homenode.chat.syntax.schema_types import resolve, types_of
from homenode.errors import UserError

_DEEPEST = 16
_DATE = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_LABEL = r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_HOST = rf"{_LABEL}(\.{_LABEL}){{0,8}}"
_FORMATS = {  # what each has at least; none has texts that are not of the format
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": r"P([0-9]{1,9}W|[0-9]{1,9}D(T[0-9]{1,9}H)?|T[0-9]{1,9}[HMS])",
    "email": rf"[a-zA-Z0-9_+-]+(\.[a-zA-Z0-9_+-]+){{0,8}}@{_HOST}",
    "hostname": _HOST,
    "ipv4": rf"({_BYTE}\.){{3}}{_BYTE}",
    "ipv6": r"([0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}|::1|::",
    "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "uri": rf"[a-zA-Z][a-zA-Z0-9+.-]*:\/\/{_HOST}(:[0-9]{{1,5}})?(\/[a-zA-Z0-9._~-]*)*"
    r"(\?[a-zA-Z0-9._~=&-]*)?(#[a-zA-Z0-9._~-]*)?",
}
_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": r" \t\r\n\f\v"}


def string_terminal(schema: Any, root: Any, *, strict: bool) -> str | None:
    """A terminal expression for the strings that a part `schema` of the schema `root` allows, None where it allows
    none.

    UserError for what cannot be kept, if it is `strict`; other schemas lose what cannot.
    """
    return _terminal(schema, root, strict, 0)


def _terminal(schema: Any, root: Any, strict: bool, depth: int) -> str | None:
    kinds = types_of(schema, root)
    if depth > _DEEPEST or (kinds is not None and "string" not in kinds):
        return None
    if not isinstance(schema, Mapping):
        return ANY
    parts: list[str | None] = []
    if "$ref" in schema:
        parts.append(_terminal(resolve(schema, root), root, strict, depth + 1))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        parts.append(one_of([text_terminal(value) for value in values if isinstance(value, str)]))
    for word in ("anyOf", "oneOf"):
        if isinstance(found := schema.get(word), list):
            parts.append(one_of([_terminal(part, root, strict, depth + 1) for part in found]))
    if isinstance(found := schema.get("allOf"), list):
        parts += [_terminal(part, root, strict, depth + 1) for part in found]
    if strict and "not" in schema:
        raise _refusal("not")
    return all_of([*parts, *_limits(schema, strict)])


def one_of(terminals: Sequence[str | None]) -> str | None:
    """A terminal expression for what one of these matches."""
    found = [terminal for terminal in terminals if terminal is not None]
    return f"({' | '.join(found)})" if found else None


def all_of(terminals: Sequence[str | None]) -> str | None:
    """A terminal expression for what all of these match."""
    if None in terminals:
        return None
    found = [terminal for terminal in terminals if terminal is not None and terminal != ANY]
    return f"({' & '.join(found)})" if found else ANY


def _limits(schema: Mapping[str, Any], strict: bool) -> list[str]:
    parts = []
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if isinstance(most, int) or (isinstance(least, int) and least > 0):
        parts.append(f"/(?s:.{{{int(least)},{'' if most is None else int(most)}}})/")
    if isinstance(pattern := schema.get("pattern"), str):
        found = search_expression(pattern)
        if found is None and strict:
            raise _refusal(f"the pattern {pattern[:100]!r}")
        if found is not None:
            parts.append(f"/{found}/")
    if isinstance(name := schema.get("format"), str):
        if name in _FORMATS:
            parts.append(f"/{_FORMATS[name]}/")
        elif strict:
            raise _refusal(f"the format {name[:100]!r}")
    return parts


def _refusal(what: str) -> UserError:
    return UserError(f"{what} cannot be kept for a text in this model's form of calls", param="tools")


def text_terminal(text: str) -> str:
    """A terminal expression for one text."""
    return literal(text) if text else "/()/"


def search_expression(pattern: str) -> str | None:
    """A regular expression, for between slashes, for whole texts in which a pattern of JSON Schema matches somewhere;
    None where it has anchors in the middle.
    """
    branches = []
    for branch in _branches(pattern):
        begun = branch.startswith("^")
        branch = branch[begun:]
        ended = re.search(r"(?<!\\)(\\\\)*\$\Z", branch) is not None
        branch = branch[: len(branch) - ended]
        written = _rewritten(branch)
        if written is None:
            return None
        branches.append(f"{'' if begun else '(?s:.*)'}({written}){'' if ended else '(?s:.*)'}")
    return f"({'|'.join(branches)})"


_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)


def _branches(pattern: str) -> list[str]:
    """The alternatives of a regular expression."""
    branches, depth = [""], 0
    for piece in _PIECE.findall(pattern):
        depth += (piece == "(") - (piece == ")")
        if piece == "|" and depth == 0:
            branches.append("")
        else:
            branches[-1] += piece
    return branches


def _rewritten(branch: str) -> str | None:
    """A branch as Rust's regex crate reads it, between slashes; None where it has anchors."""
    written = []
    for piece in _PIECE.findall(branch):
        if piece in ("^", "$", r"\b", r"\B"):
            return None
        if len(piece) == 2 and piece[0] == "\\" and piece[1].lower() in _CLASSES:
            piece = f"[{'^' if piece[1].isupper() else ''}{_CLASSES[piece[1].lower()]}]"
        elif piece[0] == "[":
            piece = re.sub(r"\\([dws])", lambda found: _CLASSES[found[1]], piece)
        written.append(re.sub(r"(?<!\\)/", r"\\/", piece).replace("\n", r"\n").replace("\r", r"\r"))
    return "".join(written)
