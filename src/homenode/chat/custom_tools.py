"""Custom tools, which take one text: as functions that a model knows, and the text of their calls.

To the model a custom tool is a function whose only parameter is that text, so that every format of tool calls can carry
it. `CustomInput` takes the text out of the JSON arguments in which the model wrote it, as they come.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal

PARAMETER = "input"
Syntax = Literal["lark", "regex"]
_OPENING = ("{", f'"{PARAMETER}"', ":", '"')  # what comes before the text, with white space between
_PLAIN = re.compile(r'[^"\\]+')
_SPACE = re.compile(r"[ \t\r\n]+")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_BROKEN = "\N{REPLACEMENT CHARACTER}"  # stands for half of a surrogate pair


class CustomInput:
    """Takes pieces of arguments and gives pieces of the input. What the pieces make does not depend on how they are
    cut.

    Arguments of another form are the input themselves: a model that was not bound to the form still gets its text
    through.
    """

    def __init__(self) -> None:
        self._held = ""  # text that cannot be read before more has come
        self._opened = 0  # parts of `_OPENING` that were read
        self._before = ""  # all that was taken for the opening, which is the input after all where it is none
        self._state = "opening"  # then "text" and "closed", or "other"

    def feed(self, piece: str) -> str:
        """The input that can be told once `piece` has come as well."""
        if self._state == "closed":
            return ""
        if self._state == "other":
            return piece
        self._held += piece
        if self._state == "opening":
            self._open()
        if self._state == "other":
            given, self._before, self._held = self._before + self._held, "", ""
            return given
        return self._read_text() if self._state == "text" else ""

    def _open(self) -> None:
        while self._opened < len(_OPENING):
            if space := _SPACE.match(self._held):
                self._take(space.end())
            wanted = _OPENING[self._opened]
            if not self._held.startswith(wanted[: len(self._held)]):
                self._state = "other"
                return
            if len(self._held) < len(wanted):
                return
            self._take(len(wanted))
            self._opened += 1
        self._state = "text"

    def _take(self, count: int) -> None:
        self._before += self._held[:count]
        self._held = self._held[count:]

    def _read_text(self) -> str:
        given, at, text = [], 0, self._held
        while at < len(text):
            if plain := _PLAIN.match(text, at):
                given.append(plain.group())
                at = plain.end()
            elif text[at] == '"':
                self._state, at = "closed", len(text)
            else:
                read = _escape(text, at)
                if read is None:
                    break
                given.append(read[0])
                at = read[1]
        self._held = text[at:]
        return "".join(given)


def _escape(text: str, at: int) -> tuple[str, int] | None:
    """The character that the escape at `at` stands for, and where the text goes on; None: more text is needed. What is
    no escape stands for itself.
    """
    kind = text[at + 1 : at + 2]
    if not kind:
        return None
    if kind != "u":
        return _ESCAPES.get(kind, "\\" + kind), at + 2
    if len(text) < at + 6:
        return None
    if not _HEX.fullmatch(text, at + 2, at + 6):
        return "\\u", at + 2
    code = int(text[at + 2 : at + 6], 16)
    if not 0xD800 <= code < 0xE000:
        return chr(code), at + 6
    if code >= 0xDC00:
        return _BROKEN, at + 6
    return _pair(text, at + 6, code)


def _pair(text: str, at: int, high: int) -> tuple[str, int] | None:
    """The character of a surrogate pair whose second half may be at `at`."""
    following = text[at : at + 6]
    if len(following) < 6 and "\\u".startswith(following[:2]):
        return None
    if following[:2] != "\\u" or not _HEX.fullmatch(following, 2) or not 0xDC00 <= int(following[2:], 16) < 0xE000:
        return _BROKEN, at
    return chr(0x10000 + ((high - 0xD800) << 10) + int(following[2:], 16) - 0xDC00), at + 6


def custom_input(arguments: str) -> str:
    """The input in whole arguments."""
    return CustomInput().feed(arguments)


def arguments_of(text: str) -> str:
    """The arguments that have `text` as their input."""
    return json.dumps({PARAMETER: text}, ensure_ascii=False)


def custom_function(name: str, description: str, syntax: Syntax | None = None, definition: str = "") -> dict[str, Any]:
    """A custom tool as chat templates know functions. `syntax` and `definition`: of the grammar that its text keeps."""
    text: dict[str, Any] = {"type": "string"}
    if syntax is not None:
        kind = "regular expression" if syntax == "regex" else "Lark grammar"
        text["description"] = f"A text that this {kind} describes:\n{definition}"
    schema = {"type": "object", "properties": {PARAMETER: text}, "required": [PARAMETER]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def input_lark(syntax: Syntax, definition: str) -> str:
    """The grammar of an input in Lark."""
    return definition if syntax == "lark" else f"start: /{_for_slashes(definition)}/\n"


def _for_slashes(pattern: str) -> str:
    """A regular expression as it is written between slashes."""
    written, escaped = [], False
    for character in pattern:
        shown = {"/": "/" if escaped else "\\/", "\n": "n" if escaped else "\\n"}.get(character, character)
        written.append(shown)
        escaped = character == "\\" and not escaped
    return "".join(written)
