"""Texts that keep a grammar in Lark, as the inputs of tools: between marks, or within a string of JSON.

A grammar without recursion becomes one terminal, because a lexer does not part its terminals at an escape or a mark
that another terminal might go on with.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from homenode.chat.grammars.escapes import escaped_regex, refusal
from homenode.chat.grammars.lark import LarkWriter, escape, literal

_PIECES = re.compile(
    r"""(?P<comment>(?:\#|//)[^\n]*)
    |(?P<string>"(?:\\.|[^"\\\n])*")(?P<caseless>i(?![a-zA-Z0-9_]))?(?:\s*\.\.\s*(?P<last>"(?:\\.|[^"\\\n])*"))?
    |/(?P<regex>(?:\\.|[^/\\\n])+)/(?P<flags>[imslux]*)
    |%import\s+common\s*(?:\.(?P<one>\w+)(?:\s*->\s*(?P<renamed>\w+))?|\((?P<several>[\w\s,]*)\))
    |(?P<foreign>%(?:json|regex|lark|import|llguidance)\b|<[^<>\s]+>|@[\w-]+|(?<![\w:])~)
    """,
    re.VERBOSE,
)
_COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[a-fA-F0-9]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "FLOAT": r"([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+",
    "NUMBER": r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "ESCAPED_STRING": r'"([^"\\\n]|\\.)*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[_A-Za-z][_A-Za-z0-9]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(\r?\n)+",
}
_MOST_RULES = 200
_NAME = re.compile(r"\x00(\d+)\x00|(?:->\s*)?\b[A-Za-z_][\w-]*")
_DEFINITION = re.compile(r"^[ \t]*[!?]*([A-Za-z_][\w-]*)(\[[^\]]*\])?(?:\.-?\d+)?[ \t]*:(?!:)", re.MULTILINE)


def marked_input(lark: LarkWriter, grammar: str, end: str) -> str:
    """A rule body for a text that keeps `grammar`, with the mark `end` behind it, as it stands."""
    terminal = _Terminals(lark, grammar, _as_it_stands).start()
    if terminal is not None:
        return lark.up_to(f"({terminal} & {lark.without([escape(end)])})", end)
    return f"{nested(grammar)} {lark.mark(end)}"


def quoted_input(lark: LarkWriter, grammar: str) -> str:
    """A rule body for a JSON string of a text that keeps `grammar`. UserError for parts of Lark that have no such
    form.
    """
    terminal = _Terminals(lark, grammar, _escaped).start()
    if terminal is None:
        return f'"\\"" {nested(_rewritten(grammar, _escaped))} "\\""'
    return f'"\\"" {terminal} "\\""'


def nested(grammar: str) -> str:
    """A rule body for the texts of a whole grammar in Lark."""
    return f"%lark {{\n{grammar}\n}}"


def _rewritten(grammar: str, write: Callable[[re.Match[str]], str]) -> str:
    """A grammar with `write` of each of its literals and regular expressions."""
    written, at, imported = [], 0, list[str]()
    for piece in _PIECES.finditer(grammar):
        written.append(grammar[at : piece.start()])
        at = piece.end()
        if piece["foreign"] is not None:
            raise refusal(piece["foreign"])
        names = _imported(piece)
        imported += [f"{name}: {write(_regex(common))}" for name, common in names.items()]
        written.append("" if names or piece["comment"] is not None else write(piece))
    return "\n".join(["".join([*written, grammar[at:]]), *imported])


def _regex(pattern: str) -> re.Match[str]:
    found = _PIECES.match("/" + pattern.replace("/", r"\/") + "/")
    assert found is not None
    return found


def _imported(piece: re.Match[str]) -> dict[str, str]:
    """The terminals that a piece imports: regular expressions by name."""
    if piece["one"] is None and piece["several"] is None:
        return {}
    names = [name.strip() for name in (piece["several"] or piece["one"]).split(",") if name.strip()]
    for name in names:
        if name not in _COMMON:
            raise refusal(f"common.{name}")
    return {piece["renamed"] or name: _COMMON[name] for name in names}


def _as_it_stands(piece: re.Match[str]) -> str:
    return piece[0]


def _escaped(piece: re.Match[str]) -> str:
    """A literal or a regular expression for texts within a string of JSON."""
    if piece["last"] is not None:
        first, last = json.loads(piece["string"]), json.loads(piece["last"])
        return f"/{escaped_regex(f'[{re.escape(first)}-{re.escape(last)}]')}/"
    if piece["string"] is not None:
        text = json.loads(piece["string"])
        if piece["caseless"]:
            return f"/{escaped_regex(f'(?i:{re.escape(text)})')}/"
        return literal(json.dumps(text, ensure_ascii=False)[1:-1])
    flags, regex = piece["flags"], piece["regex"]
    return f"/{escaped_regex(f'(?{flags}:{regex})' if flags else regex)}/"


class _Terminals:
    """The rules of a grammar as terminals, which are made of each other without recursion."""

    def __init__(self, lark: LarkWriter, grammar: str, write: Callable[[re.Match[str]], str]) -> None:
        self._lark, self._pieces = lark, list[str]()
        self._bodies: dict[str, str] = {}
        self._names: dict[str, str | None] = {}  # of terminals, by names in the grammar; None while one is made
        self._regular = not any(piece["foreign"] for piece in _PIECES.finditer(grammar)) and "%ignore" not in grammar
        if not self._regular:
            return

        def keep(piece: re.Match[str]) -> str:
            self._pieces.append(write(piece))
            return f" \x00{len(self._pieces) - 1}\x00 "

        text = _rewritten(grammar, keep)
        found = list(_DEFINITION.finditer(text))
        for number, definition in enumerate(found):
            end = found[number + 1].start() if number + 1 < len(found) else len(text)
            self._bodies[definition[1]] = " ".join(text[definition.end() : end].split())
            self._regular &= definition[2] is None

    def start(self) -> str | None:
        """The name of the terminal for whole texts; None where the grammar has recursion, or rules with attributes."""
        try:
            return self._terminal("start") if self._regular else None
        except _IrregularError:
            return None

    def _terminal(self, name: str) -> str:
        if name not in self._names:
            if name not in self._bodies or len(self._names) > _MOST_RULES:
                raise _IrregularError
            self._names[name] = None
            self._names[name] = self._lark.terminal(f"({_NAME.sub(self._part, self._bodies[name])})")
        found = self._names[name]
        if found is None:
            raise _IrregularError
        return found

    def _part(self, found: re.Match[str]) -> str:
        if found[1] is not None:
            return self._pieces[int(found[1])]
        return "" if found[0].startswith("->") else self._terminal(found[0])


class _IrregularError(Exception):
    """A grammar is no regular expression."""
