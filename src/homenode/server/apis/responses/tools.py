"""Tools of a request to the Responses API as functions that a chat template knows, and calls of these as the API has
them.

A model sees one flat list of functions. A function of a namespace gets a name made of both; a custom tool, which takes
a text, becomes a function with one parameter. Tools that a service of OpenAI would run are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Struct

from homenode.chat.custom_tools import custom_function
from homenode.server.apis.responses.items import MOST_TOOLS, ToolName

_PLAIN_NAMESPACE = "functions"  # what models that know namespaces call the one of all functions
_BETWEEN = "__"  # namespace and name, as clients of MCP servers write it


class ResponsesFunctionTool(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag="function"):
    """A function of the client, with the JSON schema of its arguments."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    output_schema: Any = None
    defer_loading: bool | None = None
    allowed_callers: Any = None


class ResponsesTextSyntax(Struct, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """Any text."""


class ResponsesGrammarSyntax(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag="grammar"):
    """A text that a grammar describes."""

    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Meta(min_length=1, max_length=2**17)]


class ResponsesCustomTool(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag="custom"):
    """A tool of the client that takes a text."""

    name: ToolName
    description: str | None = None
    format: ResponsesTextSyntax | ResponsesGrammarSyntax | None = None
    defer_loading: bool | None = None
    allowed_callers: Any = None


class ResponsesNamespace(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag="namespace"):
    """Tools under one name, such as those of an MCP server. Its functions and custom tools are read one by one."""

    name: ToolName
    description: str | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=MOST_TOOLS)]


Tool = ResponsesFunctionTool | ResponsesCustomTool
TOOL_KINDS: dict[str, type] = {"function": ResponsesFunctionTool, "custom": ResponsesCustomTool}


class GivenTool(NamedTuple):
    """A tool of a request. `place`: where it is in the body. `about`: what its namespace is, told with one of its
    tools."""

    tool: Tool
    place: str
    namespace: str | None = None
    about: str = ""


@dataclass(frozen=True)
class OfferedTool:
    """A tool under the name that the model knows it by."""

    flat_name: str
    namespace: str | None
    tool: Tool
    description: str
    place: str

    @property
    def custom(self) -> bool:
        """Return whether it takes a text."""
        return isinstance(self.tool, ResponsesCustomTool)

    def for_template(self) -> dict[str, Any]:
        """The function as chat templates know functions."""
        if isinstance(self.tool, ResponsesCustomTool):
            if isinstance(syntax := self.tool.format, ResponsesGrammarSyntax):
                return custom_function(self.flat_name, self.description, syntax.syntax, syntax.definition)
            return custom_function(self.flat_name, self.description)
        function: dict[str, Any] = {"name": self.flat_name, "description": self.description}
        function["parameters"] = self.tool.parameters or {"type": "object", "properties": {}}
        if self.tool.strict is not None:
            function["strict"] = self.tool.strict
        return {"type": "function", "function": function}


class OfferedTools:
    """All tools of a request. Of two with one name and namespace the later one counts."""

    def __init__(self, given: Iterable[GivenTool]) -> None:
        self._flat_names: dict[tuple[str | None, str], str] = {}
        self.by_name: dict[str, OfferedTool] = {}
        for each in given:
            self._add(each)

    def _add(self, given: GivenTool) -> None:
        tool, place, namespace, about = given
        flat_name = self.flat_name(namespace, tool.name)
        known = self._flat_names.get((namespace, tool.name))
        while known is None and flat_name in self.by_name:
            flat_name += "_"
        self._flat_names[namespace, tool.name] = flat_name
        description = "\n".join(text for text in (tool.description, about) if text)
        self.by_name[flat_name] = OfferedTool(flat_name, namespace, tool, description, place)

    def flat_name(self, namespace: str | None, name: str) -> str:
        """Return what the model calls this function, whether it is offered now or was called before."""
        known = self._flat_names.get((namespace, name))
        if known is not None:
            return known
        if namespace is None or namespace == _PLAIN_NAMESPACE:
            return name
        return f"{namespace}{'' if namespace.endswith(_BETWEEN) else _BETWEEN}{name}"

    def named(self, name: str, namespace: str | None, *, custom: bool | None = None) -> OfferedTool | None:
        """The tool that a client means; where it leaves the namespace out, the first one of the name."""
        for tool in self.by_name.values():
            fits = tool.tool.name == name or tool.flat_name == name
            if fits and namespace in (None, tool.namespace) and custom in (None, tool.custom):
                return tool
        return None

    def only(self, tools: Sequence[OfferedTool]) -> list[dict[str, Any]]:
        """Return these tools as chat templates know them, in the order of the request."""
        kept = {tool.flat_name for tool in tools}
        return [tool.for_template() for name, tool in self.by_name.items() if name in kept]
