"""Traits that can be learned of a chat template by rendering trial conversations: the form of content it takes, and
what it writes behind an answer.

Templates say neither. Some want a message's content as a string, some as a list of parts, and given the wrong form
most of them leave the words out without an error; many show the first of several parts alone, or print them as a list,
and some want one form from the user and another from the system or from tools. So for each role words are put through,
and looked for: in parts there are two of them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from homenode.errors import UserError

# Of messages; the second says whether an answer is to follow.
Render = Callable[[Sequence[Mapping[str, Any]], bool], str]
_WORD, _SECOND_WORD = "Qx7Vh2", "Jb9Kw4"
_BRACKETED = re.compile(r"<[^<>\s]{1,64}>|\[[^\[\]\s]{1,64}\]")
_LONGEST_TRIAL_S = 1.0  # a template that takes longer for one trial is not tried further


class Form(Enum):
    """The form in which the content of a message is given."""

    STRING = "string"
    PART = "part"  # a list of one part, as the template shows no further ones
    PARTS = "parts"


_STRING = frozenset((Form.STRING,))
_CALL_ID = "call00001"  # nine letters and digits, as some templates want them
_CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": _CALL_ID, "type": "function", "function": {"name": "look", "arguments": {}}}],
}


@dataclass(frozen=True)
class TemplateTraits:
    """`forms`: those a role's content is shown in. `turn_end`: the token behind what the assistant said, None where
    there is none.
    """

    forms: Mapping[str, frozenset[Form]] = field(default_factory=dict)
    turn_end: str | None = None

    def conform(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The messages with their contents in forms the template takes: as they are where it can, changed where it
        must be.
        """
        return [self._conform(message) for message in messages]

    def _conform(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        forms = self.forms.get(str(message.get("role"))) or _one_form(self.forms.get("user", _STRING))
        content = message.get("content")
        if isinstance(content, str) and Form.STRING not in forms:
            return {**message, "content": _as_parts(content)}
        if isinstance(content, list) and Form.PARTS not in forms and all(_is_text(part) for part in content):
            text = "\n".join(part["text"] for part in content)
            return {**message, "content": text if Form.STRING in forms else _as_parts(text)}
        return message


def read_traits(
    render: Render,
    added_tokens: Collection[str],
    vocabulary: Container[str],
    clock: Callable[[], float] = time.monotonic,
) -> TemplateTraits:
    """The traits of the template that `render` renders. What cannot be found out, as the template refuses the trial,
    is left at its default.

    A turn may end with one of the `added_tokens`, or with another token of the `vocabulary` that is written like one.
    """
    trials = _Trials(render, clock)
    user = trials.forms([], "user", []) or _STRING
    asked = TemplateTraits({"user": user}).conform([{"role": "user", "content": "Hi"}])
    system = trials.forms([], "system", asked) or _one_form(user)
    developer = trials.forms([], "developer", asked) or system
    assistant = trials.forms(asked, "assistant", asked) or _one_form(user)
    forms = {"user": user, "system": system, "developer": developer, "assistant": assistant}
    called = TemplateTraits(forms).conform([*asked, _CALL])
    forms["tool"] = trials.forms(called, "tool", []) or _one_form(user)
    answered = TemplateTraits(forms).conform([*asked, {"role": "assistant", "content": _WORD}])
    return TemplateTraits(forms, _turn_end(trials.text(answered, False), added_tokens, vocabulary))


def _one_form(forms: frozenset[Form]) -> frozenset[Form]:
    """Return the forms for a role that cannot be tried: text, where the user's may be that, as every template that
    takes both shows it.
    """
    return _STRING if Form.STRING in forms else forms


class _Trials:
    """Renders trial conversations until one of them takes too long."""

    def __init__(self, render: Render, clock: Callable[[], float]) -> None:
        self._render, self._clock, self._open = render, clock, True

    def text(self, messages: Sequence[Mapping[str, Any]], answer_follows: bool) -> str:
        """The rendering; empty where the template refuses or fails, and once it was too slow."""
        if not self._open:
            return ""
        begun = self._clock()
        try:
            return self._render(messages, answer_follows)
        except UserError:
            return ""
        finally:
            self._open = self._clock() - begun <= _LONGEST_TRIAL_S

    def forms(
        self, before: Sequence[Mapping[str, Any]], role: str, after: Sequence[Mapping[str, Any]]
    ) -> frozenset[Form]:
        """The forms in which a message of `role` shows its words; none where neither does."""
        trial = {"role": role} | ({"tool_call_id": _CALL_ID} if role == "tool" else {})

        def shown(*words: str, content: Any) -> bool:
            text = self.text([*before, {**trial, "content": content}, *after], True)
            return all(word in text for word in words) and not (content != _WORD and _shows_the_list(text))

        found = {Form.STRING} if shown(_WORD, content=_WORD) else set()
        if shown(_WORD, _SECOND_WORD, content=_as_parts(_WORD, _SECOND_WORD)):
            found.add(Form.PARTS)
        elif not found and shown(_WORD, content=_as_parts(_WORD)):
            found.add(Form.PART)
        return frozenset(found)


def _shows_the_list(text: str) -> bool:
    """Return whether the parts were written as Python or JSON writes a list, which is what a template for strings does
    with them.
    """
    before = text[: text.index(_WORD)]
    return before.endswith(("'text': '", '"text": "', '"text":"'))


def _turn_end(text: str, added_tokens: Collection[str], vocabulary: Container[str]) -> str | None:
    """The token directly behind the last appearance of the word, white space apart; the longest of several that begin
    alike.
    """
    _, found, rest = text.rpartition(_WORD)
    rest = rest.lstrip()
    if not found or not rest:
        return None
    added = max((token for token in added_tokens if token and rest.startswith(token)), key=len, default=None)
    bracketed = _BRACKETED.match(rest)
    return added or (bracketed[0] if bracketed and bracketed[0] in vocabulary else None)


def _as_parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
