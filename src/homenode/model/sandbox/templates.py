"""Chat templates as the sandboxed process compiles and renders them: jinja2, with the extensions Hugging Face
templates rely on.

The environment is jinja2's sandbox; a template sees only the values passed to it. It may change lists and mappings,
as templates of Kimi K2 do: its own, and those it was given, which are read from the socket anew for each rendering and
belong to nobody else. The extensions are `{% break %}` and `{% continue %}`, `{% generation %}` blocks (rendered as
their content), `tojson` without HTML escapes, `raise_exception` and `strftime_now`.
"""

from __future__ import annotations

import datetime
import json
import random  # noqa: F401 - jinja2 imports it when a template asks for `lipsum`; here it costs no rendering time
from collections.abc import Generator, Mapping
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox


class TemplateRefusal(Exception):
    """Raised by a template through raise_exception."""


class OutputTooLong(Exception):
    """A rendering gave more characters than it may."""


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks what the model wrote; for a prompt it is just its content."""

    tags = {"generation"}  # noqa: RUF012 - the name and kind of this attribute are jinja2's

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def template_environment() -> jinja2.Environment:
    """The environment that templates are compiled in."""
    environment = jinja2.sandbox.SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def render(template: jinja2.Template, values: Mapping[str, Any], most_characters: int) -> str:
    """The text of a rendering.

    Raises OutputTooLong for more than `most_characters`, and whatever the template raises.
    """
    pieces, length = [], 0
    for piece in template.generate(values):  # a mapping, because a value may have any name, such as `self`
        pieces.append(piece)
        length += len(piece)
        if length > most_characters:
            raise OutputTooLong(f"it gave more than {most_characters} characters")
    return "".join(pieces)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if isinstance(value, Generator):  # what `map` and `select` give
        value = list(value)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateRefusal(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
