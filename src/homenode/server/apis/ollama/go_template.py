"""Templates as Ollama takes them in `template`: what Go's text/template is for the prompts of models.

There are text, values (`.Prompt`, `$message.Content`), variables, `if`, `range`, `with`, comments, trimming (`{{-`) and
functions. What templates have besides (`define`, `template`, `block`, methods) is refused by name.
"""

from __future__ import annotations

import json
import re
from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any

from homenode.server.apis.ollama.go_rendering import (
    FUNCTION_NAMES,
    FUNCTIONS,
    GoTemplateError,
    Rendering,
    RenderingEnded,
    TemplateNode,
    TemplateValue,
    call_of,
    choice_of,
    fields_of,
    looked_up,
    render_each,
    render_within,
    text_of,
    written_text,
)

_DEEPEST = 32  # blocks and brackets within each other

_TOKEN = re.compile(
    r"""\s*(?:(?P<end>-?\}\})
    | (?P<comment>/\*.*?\*/)
    | (?P<string>"(?:\\.|[^"\\\n])*"|`[^`]*`)
    | (?P<number>-?\d+(?:\.\d+)?)
    | (?P<path>\$\w*(?:\.\w+)*|(?:\.\w+)+|\.)
    | (?P<name>[A-Za-z_]\w*)
    | (?P<sign>:=|[=|(),]))""",
    re.VERBOSE | re.DOTALL,
)
_REFUSED = frozenset(("define", "template", "block", "break", "continue", "call", "html", "js", "urlquery"))


class GoTemplate:
    """A template that was read. Raises GoTemplateError."""

    def __init__(self, source: str) -> None:
        self._source, self._at, self._trims, self._depth = source, 0, False, 0
        self.names: set[str] = set()  # of the values that are looked at, such as Messages
        self._nodes, ended_by = self._block(())
        assert ended_by == ""

    def render(self, values: Mapping[str, Any], *, ends_at_response: bool) -> str:
        """The text for `values`. `ends_at_response`: it ends where `.Response` is. Raises GoTemplateError."""
        run = Rendering(values, ChainMap({"$": values}), ends_at_response)
        try:
            render_each(self._nodes, run)
        except RenderingEnded:
            pass
        return "".join(run.written)

    # Blocks

    def _block(self, ends: Sequence[str]) -> tuple[list[TemplateNode], str]:
        """Return what stands before the next of the words `ends`, and that word; "" at the end of the template."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise GoTemplateError(f"blocks lie more than {_DEEPEST} deep in each other")
        nodes: list[TemplateNode] = []
        while True:
            begin = self._source.find("{{", self._at)
            text = self._source[self._at :] if begin < 0 else self._source[self._at : begin]
            if self._trims:
                text = text.lstrip()
            if begin < 0:
                if ends:
                    raise GoTemplateError("a block has no {{ end }}")
                nodes.append(written_text(text))
                return nodes, ""
            self._at = begin + 2
            if re.match(r"-\s", self._source[self._at : self._at + 2]):
                text = text.rstrip()
                self._at += 1
            nodes.append(written_text(text))
            kind, word = self._peek()
            if kind == "name" and word in ("end", "else"):
                if word not in ends:
                    raise GoTemplateError(f"{{{{ {word} }}}} belongs to no block")
                self._take()
                self._depth -= 1
                return nodes, word
            if (node := self._action(kind, word)) is not None:
                nodes.append(node)

    def _action(self, kind: str, word: str) -> TemplateNode | None:
        """Return what stands between braces, which is no end of a block."""
        if kind == "comment":
            self._take()
            self._close()
            return None
        if kind == "end":
            raise GoTemplateError("there is nothing between {{ and }}")
        if kind == "name" and word in ("if", "with", "range"):
            self._take()
            return {"if": self._if, "with": self._with, "range": self._range}[word]()
        declared = self._declared()
        value = self._pipeline()
        self._close()
        if declared is None:
            return lambda run: run.write(text_of(value(run)))
        (name, *_), assigns = declared

        def assign(run: Rendering) -> None:
            place = next((one for one in run.variables.maps if name in one), None) if assigns else run.variables.maps[0]
            if place is None:
                raise GoTemplateError(f"`{name}` is assigned and was not declared")
            place[name] = value(run)

        return assign

    def _if(self) -> TemplateNode:
        value = self._pipeline()
        body, other = self._bodies()

        def choose(run: Rendering) -> None:
            render_within(run, run.dot, {}, body if value(run) else other)

        return choose

    def _with(self) -> TemplateNode:
        value = self._pipeline()
        body, other = self._bodies()

        def enter(run: Rendering) -> None:
            found = value(run)
            render_within(run, found or run.dot, {}, body if found else other)

        return enter

    def _range(self) -> TemplateNode:
        names, assigns = self._declared(most=2) or ((), False)
        if assigns:
            raise GoTemplateError("`range` needs := behind its variables")
        value = self._pipeline()
        body, other = self._bodies()

        def repeat(run: Rendering) -> None:
            found = value(run) or ()
            if not isinstance(found, list | tuple | Mapping):
                raise GoTemplateError("`range` goes over what is no list")
            pairs = sorted(found.items()) if isinstance(found, Mapping) else list(enumerate(found))
            for pair in pairs:
                run.step()
                render_within(run, pair[1], dict(zip(names, pair[-len(names) :] if names else (), strict=True)), body)
            if not pairs:
                render_within(run, run.dot, {}, other)

        return repeat

    def _bodies(self) -> tuple[list[TemplateNode], list[TemplateNode]]:
        """The two bodies of a block whose head was read up to its closing braces."""
        self._close()
        body, word = self._block(("end", "else"))
        if word == "end":
            self._close()
            return body, []
        kind, name = self._peek()
        if kind == "name" and name in ("if", "with"):
            self._take()
            self._depth += 1
            if self._depth > _DEEPEST:
                raise GoTemplateError(f"blocks lie more than {_DEEPEST} deep in each other")
            node = self._if() if name == "if" else self._with()
            self._depth -= 1
            return body, [node]
        self._close()
        other, _ = self._block(("end",))
        self._close()
        return body, other

    # Values

    def _declared(self, most: int = 1) -> tuple[tuple[str, ...], bool] | None:
        """The variables that a pipeline is for, and whether they were declared before; None where there are none."""
        begin = self._at
        names: list[str] = []
        while self._peek()[0] == "path" and re.fullmatch(r"\$\w+", self._peek()[1]):
            names.append(self._take()[1])
            if len(names) > most:
                raise GoTemplateError(f"`{names[-1][:80]}` is one variable too many")
            sign = self._peek()[1]
            if sign in (":=", "="):
                self._take()
                return tuple(names), sign == "="
            if sign != ",":
                break
            self._take()
        self._at = begin
        return None

    def _pipeline(self) -> TemplateValue:
        value = self._command(None)
        while self._peek() == ("sign", "|"):
            self._take()
            value = self._command(value)
        return value

    def _command(self, last: TemplateValue | None) -> TemplateValue:
        """A value, or a call of a function, whose last argument is what was before the bar."""
        kind, name = self._peek()
        if kind != "name" or name in ("true", "false", "nil"):
            if last is not None:
                raise GoTemplateError("there is no function behind a |")
            return self._operand()
        self._take()
        if name not in FUNCTIONS and name not in ("and", "or"):
            known = "is not supported here" if name in _REFUSED else "is no function"
            raise GoTemplateError(f"`{name[:80]}` {known}; there are {FUNCTION_NAMES}")
        arguments: list[TemplateValue] = []
        while (follows := self._peek())[0] not in ("end", "sign") or follows[1] == "(":
            arguments.append(self._operand())
        if last is not None:
            arguments.append(last)
        return choice_of(name, arguments) if name in ("and", "or") else call_of(name, arguments)

    def _operand(self) -> TemplateValue:
        kind, word = self._take()
        if word == "(":
            self._depth += 1
            if self._depth > _DEEPEST:
                raise GoTemplateError(f"brackets lie more than {_DEEPEST} deep in each other")
            inner = self._pipeline()
            if self._take()[1] != ")":
                raise GoTemplateError("a bracket is not closed")
            self._depth -= 1
            if self._source.startswith(".", self._at) and self._peek()[0] == "path":
                names = self._take()[1].split(".")[1:]
                return lambda run: fields_of(inner(run), names)
            return inner
        if kind == "path":
            first, *names = word.split(".")
            names = [name for name in names if name]
            self.names.update(names[:1])
            return lambda run: looked_up(run, first, names)
        constant = self._constant(kind, word)
        return lambda run: constant

    def _constant(self, kind: str, word: str) -> Any:
        if kind == "string":
            if word.startswith("`"):
                return word[1:-1]
            try:
                return json.loads(word)
            except ValueError:
                raise GoTemplateError(f"{word[:80]} is no text that can be read") from None
        if kind == "number":
            return float(word) if "." in word else int(word[:20])
        if word in ("true", "false", "nil"):
            return {"true": True, "false": False, "nil": None}[word]
        raise GoTemplateError(f"`{word[:80]}` is not expected there" if word else "an action is not complete")

    # Tokens

    def _peek(self) -> tuple[str, str]:
        at = self._at
        token = self._take()
        self._at = at
        return token

    def _take(self) -> tuple[str, str]:
        found = _TOKEN.match(self._source, self._at)
        if found is None:
            rest = self._source[self._at : self._at + 20]
            raise GoTemplateError(f"`{rest}` cannot be read" if rest.strip() else "braces are not closed")
        self._at = found.end()
        return found.lastgroup or "", found[found.lastgroup or 0]

    def _close(self) -> None:
        kind, word = self._take()
        if kind != "end":
            raise GoTemplateError(f"`{word[:80]}` stands where }}}} is expected")
        self._trims = word.startswith("-")
