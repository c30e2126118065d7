"""Chat templates of a model, which are compiled and rendered in a process of their own (`homenode.model.sandbox`).

A template comes with a model, from anywhere: it runs in jinja2's sandbox, sees only the values passed to it, has a
deadline and limits of memory and output, and its errors become UserError.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from homenode.chat.history import older_values
from homenode.errors import CheckpointError, UserError
from homenode.model.sandbox.renderer import TemplateRenderer

_LARGEST_TEMPLATE = 1 << 20  # characters


class ChatTemplate:
    """A template that compiles. `values` (bos_token and the like) are given to every rendering."""

    def __init__(self, source: str, values: Mapping[str, Any], renderer: TemplateRenderer | None = None) -> None:
        """`renderer` renders it; by default one of its own.

        Raises CheckpointError when the template is no valid jinja2.
        """
        if len(source) > _LARGEST_TEMPLATE:
            raise CheckpointError(
                f"the model's chat template has {len(source)} characters; at most {_LARGEST_TEMPLATE} are read"
            )
        self.source = source
        self._values = dict(values)
        self._renderer = renderer or TemplateRenderer()
        self._renderer.compile(source)

    def render(
        self,
        /,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **values: Any,
    ) -> str:
        """The prompt text for a conversation; `values` may have any names. Blocks for as long as a rendering takes.

        Raises UserError when the template refuses the conversation, fails on it or goes over a limit, OverloadedError
        when others take all the time there is.
        """
        given = {
            "documents": None,
            **self._values,
            **older_values(self.source, tools, time.strftime("%b %d %Y")),
            "messages": list(messages),
            "tools": None if tools is None else list(tools),
            "add_generation_prompt": add_generation_prompt,
            **values,
        }
        return self._renderer.render(self.source, given)

    def render_trial(self, messages: Sequence[Mapping[str, Any]], answer_follows: bool) -> str:
        """The prompt text for a conversation without tools, also of a template that wants a list of them. As `render`
        otherwise.
        """
        try:
            return self.render(messages, add_generation_prompt=answer_follows)
        except UserError:
            return self.render(messages, add_generation_prompt=answer_follows, tools=[])
