"""Rules and terminals of a grammar in the Lark notation of llguidance, written as they are found to be needed.

Whatever is written twice has one name, so that the lexer has few states.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

ANY = r"/(?s:.*)/"
BLANK = r"[\s&&[^\n]]*"  # what may be before the beginning of a line
_LINE = rf"(/[^\n]*/ | /{BLANK}[\[{{]\s*(\{{\s*)?[^\n]*/)"
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
        self._names_of = {token: text for text, token in special_tokens.items()}
        longest_first = sorted(filter(None, special_tokens), key=len, reverse=True)
        self._tokens = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if longest_first else None
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
        """A rule body for a text of the format, in which special tokens are tokens."""
        return " ".join(f"<[{part}]>" if isinstance(part, int) else literal(part) for part in self._parts(text)) or '""'

    def is_token(self, text: str) -> bool:
        """Return whether a mark is a token of its own."""
        return text in self.special_tokens

    def has_token(self, text: str) -> bool:
        """Return whether there are tokens of their own in a mark."""
        return any(isinstance(part, int) for part in self._parts(text))

    def _parts(self, text: str) -> list[str | int]:
        """A text cut into special tokens and what is between them."""
        if self._tokens is None or not text:
            return [text] if text else []
        cut = self._tokens.split(text)
        return [self.special_tokens.get(part, part) for part in cut if part]

    def up_to(self, terminal: str, mark: str) -> str:
        """A rule body for a text that a terminal expression matches, with `mark` behind it, which is not in the
        text.
        """
        parts = self._parts(mark)
        first = next((number for number, part in enumerate(parts) if isinstance(part, int)), None)
        if first is None:
            return self.rule(f"{terminal} {literal(mark)}", "lazy")
        before = "".join(map(str, parts[:first]))
        ended = self.terminal(f"{terminal} {literal(before)}" if before else terminal)
        behind = "".join(part if isinstance(part, str) else self._names_of[part] for part in parts[first:])
        return f"{ended} {self.mark(behind)}"

    def ordered(self, parts: Sequence[tuple[str, bool]], separator: str) -> str:
        """A rule body for a list of `parts` in their order: bodies, each with whether it must be there."""
        tails = [""]  # what may follow a part, from the last one backwards
        for body, required in reversed(parts):
            part = f"{separator} {body}" if required else f"({separator} {body})?"
            tails.append(self.rule(f"{part} {tails[-1]}"))
        bodies = []
        for (body, required), tail in zip(parts, tails[-2::-1], strict=True):
            bodies.append(f"{body} {tail}")
            if required:
                return f"({' | '.join(bodies)})"
        return f"({' | '.join(bodies)})?" if bodies else ""

    def without(self, texts: Iterable[str] = (), at_begin: Iterable[str] = ()) -> str:
        """The name of a terminal: any text, perhaps none, that has none of `texts`, and none of `at_begin` at its
        beginning or behind white space there. Both are regular expressions.
        """
        return self._without(ANY, texts, at_begin)

    def line_without(self, texts: Iterable[str], at_begin: Iterable[str]) -> str:
        """The same for a line without its end. Line breaks behind brackets that begin it are of the line."""
        return self._without(_LINE, texts, at_begin)

    def _without(self, whole: str, texts: Iterable[str], at_begin: Iterable[str]) -> str:
        inside, begin = "|".join(sorted(set(texts))), "|".join(sorted(set(at_begin)))
        parts = [rf"(?s:.*)({inside})"] if inside else []
        parts += [rf"\s*({begin})"] if begin else []
        return self.terminal(f"{whole} & ~/({'|'.join(parts)})(?s:.*)/" if parts else whole)

    def other_tokens(self, marks: Iterable[str]) -> str | None:
        """Any special token but those that are in `marks`; None where there are none."""
        apart = {part for mark in marks for part in self._parts(mark)}
        ids = sorted(token for token in self.special_tokens.values() if token not in apart)
        return f"<[{','.join(map(str, ids))}]>" if ids else None

    def text(self, start: str) -> str:
        """The whole grammar, whose messages are as the rule body `start` says."""
        return "\n".join([f"start: {start}", *self._lines, ""])
