"""Tagged parts within text, in the two forms in which clients describe them, as rules of Lark.

The first has `structures` (each with `begin`, `schema` and `end`) and `triggers`, the texts at which a structure
begins; the second a `format`, which is made of texts, schemas, patterns, grammars, tags and sequences or alternatives
of these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from homenode.grammars.field_path import FieldPath, shown
from homenode.grammars.literal import lark_literal

_DEEPEST = 40
_MOST_RULES = 500
_ANY_TEXT = r"/(.|\n)*/"

# Of a kind (json_schema, regex, grammar), its value and place: a body.
ContentRule = Callable[[str, Any, FieldPath], str]


def structural_tag_lark(description: Any, content: ContentRule, place: FieldPath) -> str:
    """A whole grammar. `content` writes the rules of what tags hold. UserError that names the place."""
    if not isinstance(description, dict) or description.get("type") != "structural_tag":
        raise place.refusal('a structural tag is an object with the type "structural_tag"')
    writer = _TagWriter(content)
    if "format" in description:
        body = writer.format(description["format"], place / "format", 0)
    elif "structures" in description:
        body = writer.triggered(*_old_form(description, place), place)
    else:
        raise place.refusal("there is neither `format` nor `structures`")
    return "\n".join([f"start: {body}", *writer.rules])


def _old_form(description: dict[str, Any], place: FieldPath) -> tuple[dict[str, Any], list[tuple[Any, FieldPath]]]:
    structures = description["structures"]
    if not isinstance(structures, list):
        raise (place / "structures").refusal("it must be a list")
    tags = [
        ({**each, "content": {"type": "json_schema", "json_schema": each.get("schema", {})}}, place / "structures" / i)
        for i, each in enumerate(structures)
        if isinstance(each, dict)
    ]
    return {"triggers": description.get("triggers")}, tags


class _TagWriter:
    """Writes rules; `rules` has those that bodies refer to."""

    def __init__(self, content: ContentRule) -> None:
        self._content, self.rules = content, list[str]()

    def format(self, given: Any, place: FieldPath, depth: int) -> str:
        """The name of a rule for one format."""
        kind = given.get("type") if isinstance(given, dict) else None
        write = getattr(self, f"_{kind}", None) if kind in _KINDS else None
        if write is None:
            raise place.refusal(f"{shown(kind)} is no type of a format; there are {', '.join(_KINDS)}")
        if depth > _DEEPEST:
            raise place.refusal(f"this is more than {_DEEPEST} levels deep")
        return self._rule(write(given, place, depth))

    def triggered(
        self, given: dict[str, Any], tags: list[tuple[Any, FieldPath]], place: FieldPath, depth: int = 0
    ) -> str:
        """Text in which a tag begins wherever a trigger stands. The body of a rule."""
        triggers = given.get("triggers")
        if not isinstance(triggers, list) or not triggers or not all(isinstance(t, str) and t for t in triggers):
            raise (place / "triggers").refusal("it must be a list of texts, at least one")
        options = []
        for tag, where in tags:
            begin = _text(tag, "begin", where)
            trigger = next((each for each in triggers if begin.startswith(each)), None)
            if trigger is None:
                raise (where / "begin").refusal(f"{shown(begin)} begins with none of the triggers")
            opened = self._rule(f"{_ANY_TEXT} {_quoted(trigger)}", "[lazy]")
            options.append(self._rule(f"{opened} {self._inside(tag, begin[len(trigger) :], where, depth)}"))
        if not options:
            raise place.refusal("there is no tag")
        any_tag = self._rule(" | ".join(options))
        if given.get("stop_after_first"):
            return any_tag if given.get("at_least_one") else f"{any_tag} | {self._plain(triggers)}"
        return f"{any_tag}{'+' if given.get('at_least_one') else '*'} {self._plain(triggers)}"

    def _plain(self, triggers: list[str]) -> str:
        """Text without a trigger, perhaps none."""
        name = f"TEXT_{len(self.rules)}"
        without = " ".join(f"& ~(/(?s:.*)/ {_quoted(each)} /(?s:.*)/)" for each in triggers)
        self.rules.append(f"{name}: /(?s:.*)/ {without}")
        return f"{name}?"

    def _rule(self, body: str, options: str = "") -> str:
        name = f"part_{len(self.rules)}"
        self.rules.append(f"{name}{options}: {body}")
        if len(self.rules) > _MOST_RULES:
            raise FieldPath("structural_tag").refusal(f"this has more than {_MOST_RULES} parts")
        return name

    def _inside(self, tag: dict[str, Any], begin: str, place: FieldPath, depth: int) -> str:
        """The rest of a tag, from `begin` on."""
        end, inner = tag.get("end", ""), tag.get("content", {"type": "any_text"})
        ends = [end] if isinstance(end, str) else end
        if not isinstance(ends, list) or not ends or not all(isinstance(each, str) for each in ends):
            raise (place / "end").refusal("it must be a text, or a list of texts")
        begun = _quoted(begin) if begin else ""
        closing = " | ".join(map(_quoted, ends)) if all(ends) else ""
        if isinstance(inner, dict) and inner.get("type") == "any_text" and closing:
            return f"{begun} {self._rule(f'{_ANY_TEXT} ({closing})', '[lazy]')}"
        body = self.format(inner, place / "content", depth + 1)
        return f"{begun} {body} {f'({closing})' if closing else ''}"

    # One method for each type of a format: the body of its rule.

    def _const_string(self, given: dict[str, Any], place: FieldPath, depth: int) -> str:
        return _quoted(_text(given, "value", place))

    def _any_text(self, given: dict[str, Any], place: FieldPath, depth: int) -> str:
        return _ANY_TEXT

    def _json_schema(self, given: dict[str, Any], place: FieldPath, depth: int) -> str:
        if given.get("style", "json") != "json":
            raise (place / "style").refusal(f"{shown(given['style'])} cannot be kept; there is json")
        return self._content("json_schema", given.get("json_schema"), place / "json_schema")

    def _regex(self, given: dict[str, Any], place: FieldPath, depth: int) -> str:
        return self._content("regex", _text(given, "pattern", place), place / "pattern")

    def _grammar(self, given: dict[str, Any], place: FieldPath, depth: int) -> str:
        return self._content("grammar", _text(given, "grammar", place), place / "grammar")

    def _sequence(self, given: dict[str, Any], place: FieldPath, depth: int) -> str:
        return " ".join(self._elements(given, place, depth))

    def _or(self, given: dict[str, Any], place: FieldPath, depth: int) -> str:
        return " | ".join(self._elements(given, place, depth))

    def _tag(self, given: dict[str, Any], place: FieldPath, depth: int) -> str:
        return self._inside(given, _text(given, "begin", place), place, depth)

    def _triggered_tags(self, given: dict[str, Any], place: FieldPath, depth: int) -> str:
        return self.triggered(given, self._tags(given, place), place, depth)

    def _tags_with_separator(self, given: dict[str, Any], place: FieldPath, depth: int) -> str:
        separator = _text(given, "separator", place)
        tags = [self._rule(self._tag(tag, where, depth + 1)) for tag, where in self._tags(given, place)]
        one = self._rule(" | ".join(tags))
        if given.get("stop_after_first"):
            return one if given.get("at_least_one") else f"{one}?"
        several = self._rule(f"{one} ({_quoted(separator) if separator else ''} {one})*")
        return several if given.get("at_least_one") else f"{several}?"

    def _elements(self, given: dict[str, Any], place: FieldPath, depth: int) -> list[str]:
        listed = given.get("elements")
        if not isinstance(listed, list) or not listed:
            raise (place / "elements").refusal("it must be a list of formats, at least one")
        return [self.format(each, place / "elements" / i, depth + 1) for i, each in enumerate(listed)]

    def _tags(self, given: dict[str, Any], place: FieldPath) -> list[tuple[Any, FieldPath]]:
        tags = given.get("tags")
        if not isinstance(tags, list) or not tags or not all(isinstance(tag, dict) for tag in tags):
            raise (place / "tags").refusal("it must be a list of tags, at least one")
        return [(tag, place / "tags" / i) for i, tag in enumerate(tags)]


_KINDS = (
    "const_string",
    "any_text",
    "json_schema",
    "regex",
    "grammar",
    "sequence",
    "or",
    "tag",
    "triggered_tags",
    "tags_with_separator",
)


def _text(given: Any, name: str, place: FieldPath) -> str:
    value = given.get(name) if isinstance(given, dict) else None
    if not isinstance(value, str):
        raise (place / name).refusal(f"it must be a text, not {shown(value)}")
    return value


def _quoted(text: str) -> str:
    return lark_literal(text)
