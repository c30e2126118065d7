"""Chat templates: jinja2 in a sandbox, with the extensions Hugging Face templates rely on.

A template comes with a model, from anywhere: it runs in jinja2's immutable sandbox, sees only the values passed to it, and its errors become
UserError. The extensions are `{% break %}` and `{% continue %}`, `{% generation %}` blocks (rendered as their content), `tojson` without HTML
escapes, `raise_exception` and `strftime_now`.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from homenode.errors import CheckpointError, UserError


class _TemplateRefusal(Exception):
    """Raised by a template through raise_exception."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks what the model wrote; for a prompt it is just its content."""

    tags = {"generation"}  # noqa: RUF012 - the name and kind of this attribute are jinja2's

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled template. `values` (bos_token and the like) are given to every rendering."""

    def __init__(self, source: str, values: Mapping[str, Any]) -> None:
        """Raises CheckpointError when the template is no valid jinja2."""
        self.source = source
        self._values = dict(values)
        try:
            self._template = _environment().from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise CheckpointError(f"the model's chat template is not valid jinja2: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **values: Any,
    ) -> str:
        """The prompt text for a conversation. Raises UserError when the template refuses it or fails on it."""
        given = {
            "documents": None,
            **self._values,
            "messages": list(messages),
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
            **values,
        }
        try:
            return self._template.render(**given)
        except _TemplateRefusal as error:
            raise UserError(
                f"the model's chat template refuses this conversation: {error}", param="messages"
            ) from error
        except (
            Exception
        ) as error:  # a template can fail in any way a program can; all of them mean it does not fit the messages
            raise UserError(
                f"the model's chat template fails on this conversation: {type(error).__name__}: {error}",
                param="messages",
            ) from error


def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise _TemplateRefusal(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
