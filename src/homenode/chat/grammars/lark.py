"""Rules and terminals of a grammar in the Lark notation of llguidance, written as they are found to be needed.

Whatever is written twice has one name, so that the lexer has few states.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

ANY = r"/(?s:.*)/"
NEW_LINE = r"((?s:.*)\n)?[\s&&[^\n]]*"  # what is before the beginning of a line
_SPECIAL_CHARACTER = re.compile(r"[][\\^$.|?*+(){}/#&~-]")


def literal(text: str) -> str:
    """A text as it stands."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def escape(text: str) -> str:
    """A regular expression, for between slashes, that matches this text."""
    return _SPECIAL_CHARACTER.sub(r"\\\g<0>", text).replace("\n", r"\n").replace("\r", r"\r").replace("\t", r"\t")


class LarkWriter:
    """Collects rules. Names of rules are in lower case, those of terminals in upper case."""

    def __init__(self, special_tokens: Mapping[str, int]) -> None:
        """`special_tokens`: ids by text of the tokens that text never makes, but those that end an answer."""
        self.special_tokens = special_tokens
        self._names: dict[tuple[str, str], str] = {}  # by attributes and body
        self._lines: list[str] = []

    def rule(self, body: str, *attributes: str) -> str:
        """The name of a rule with this body and perhaps attributes such as "lazy"."""
        return self._named("r", body, ", ".join(attributes))

    def terminal(self, body: str) -> str:
        """The name of a terminal."""
        return self._named("T", body, "")

    def declare(self) -> str:
        """The name of a rule that `define` gives its body later, because it is part of itself."""
        self._lines.append("")
        return f"r{len(self._lines)}"

    def define(self, name: str, body: str) -> None:
        """The body of a declared rule."""
        self._lines[int(name[1:]) - 1] = f"{name}: {body}"

    def _named(self, kind: str, body: str, attributes: str) -> str:
        known = self._names.get((kind + attributes, body))
        if known is not None:
            return known
        name = f"{kind}{len(self._lines) + 1}"
        self._names[kind + attributes, body] = name
        self._lines.append(f"{name}{f'[{attributes}]' if attributes else ''}: {body}")
        return name

    def json(self, schema: Mapping[str, Any]) -> str:
        """The name of a rule for JSON texts that fit a schema."""
        return self.rule(f"%json {json.dumps(schema, ensure_ascii=False)}")

    def mark(self, text: str) -> str:
        """A mark of the format: the token where it is one, else its text."""
        token = self.special_tokens.get(text)
        return literal(text) if token is None else f"<[{token}]>"

    def is_token(self, text: str) -> bool:
        """Whether a mark is a token of its own."""
        return text in self.special_tokens

    def without(self, texts: Iterable[str] = (), on_new_line: Iterable[str] = (), at_begin: Iterable[str] = ()) -> str:
        """The name of a terminal: any text, perhaps none, that has none of `texts`, none of `on_new_line` at the
        beginning of a line, and none of `at_begin` at its beginning. All are regular expressions.
        """
        parts = [
            f"{before}({'|'.join(sorted(set(found)))})"
            for before, found in (("(?s:.*)", tuple(texts)), (NEW_LINE, tuple(on_new_line)), (r"\s*", tuple(at_begin)))
            if found
        ]
        return self.terminal(f"{ANY} & ~/({'|'.join(parts)})(?s:.*)/" if parts else ANY)

    def other_tokens(self, marks: Iterable[str]) -> str | None:
        """Any special token but those of `marks`; None where there are none."""
        apart = set(marks)
        ids = sorted(token for text, token in self.special_tokens.items() if text not in apart)
        return f"<[{','.join(map(str, ids))}]>" if ids else None

    def text(self, start: str) -> str:
        """The whole grammar, whose messages are as the rule body `start` says."""
        return "\n".join([f"start: {start}", *self._lines, ""])
