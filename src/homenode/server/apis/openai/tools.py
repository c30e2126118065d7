"""Tools, and how freely the model may choose among them, as /v1/chat/completions and /tokenize take them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Struct
from starlette.requests import Request

from homenode.chat.custom_tools import Syntax, custom_function, input_lark
from homenode.chat.offer import ToolOffer, ToolUse, takes_several
from homenode.server.apis.openai.chat_messages import ToolName, plain
from homenode.server.core.choices.grammars import check_input
from homenode.server.http.failures import ApiError
from homenode.server.http.ignored import note_ignored
from homenode.server.models.served_model import ServedModel


class FunctionDefinition(Struct, forbid_unknown_fields=True, kw_only=True):
    """A function that the model may call. `parameters`: the JSON schema of its arguments, an object; None: it has none.
    `strict`: its arguments always fit the schema.
    """

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class CustomGrammar(Struct, forbid_unknown_fields=True, kw_only=True):
    """A grammar that the text of a custom tool keeps."""

    syntax: Syntax
    definition: Annotated[str, Meta(min_length=1, max_length=2**17)]


class CustomTextFormat(Struct, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """Any text."""


class CustomGrammarFormat(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag="grammar"):
    """A text that a grammar describes."""

    grammar: CustomGrammar


class CustomDefinition(Struct, forbid_unknown_fields=True, kw_only=True):
    """A tool that takes a text."""

    name: ToolName
    description: str | None = None
    format: CustomTextFormat | CustomGrammarFormat | None = None


TOOL_TYPES = ("function", "custom")  # all others are left out


class ToolDefinition(Struct, forbid_unknown_fields=True, kw_only=True):
    """A tool. Those of another type than `function` and `custom` are not there, and are named in x-homenode-ignored.

    Fields from `name` on: of a function that is written as the Responses API has it, as some editors do.
    """

    type: str = "function"
    function: FunctionDefinition | None = None
    custom: CustomDefinition | None = None
    name: ToolName | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedFunction(Struct, forbid_unknown_fields=True, kw_only=True):
    """The name of a function."""

    name: str


class AllowedTools(Struct, forbid_unknown_fields=True, kw_only=True):
    """Some of the tools, which alone may be called."""

    mode: Literal["auto", "required"] = "auto"
    tools: list[dict[str, Any]]


class ToolChoice(Struct, forbid_unknown_fields=True, kw_only=True):
    """Setting of how freely tools are called; or one tool that is to be called, its name within `function` or `custom`
    or beside it; or several that may be.
    """

    type: Literal["function", "custom", "allowed_tools", "none", "auto", "required", "any"] = "function"
    function: NamedFunction | None = None
    custom: NamedFunction | None = None
    name: str | None = None
    allowed_tools: AllowedTools | None = None


_USES = ("none", "auto", "required", "any")  # a choice by a word alone, which may stand in `type` as well
Tools = Annotated[list[ToolDefinition], Meta(max_length=1024)]
Functions = Annotated[list[FunctionDefinition], Meta(max_length=1024)]
Choice = Literal["none", "auto", "required", "any"] | ToolChoice  # the last: what Mistral's API calls "required"


class ChatTool(NamedTuple):
    """A tool that the model may be offered. `place`: where it is in the body."""

    definition: FunctionDefinition | CustomDefinition
    place: str

    @property
    def custom(self) -> bool:
        """Return whether it takes a text."""
        return isinstance(self.definition, CustomDefinition)

    @property
    def grammar(self) -> CustomGrammar | None:
        """Return what the text of a custom tool keeps; None: nothing."""
        syntax = self.definition.format if isinstance(self.definition, CustomDefinition) else None
        return syntax.grammar if isinstance(syntax, CustomGrammarFormat) else None

    def for_template(self) -> dict[str, Any]:
        """The tool as chat templates know functions."""
        if isinstance(self.definition, FunctionDefinition):
            return {"type": "function", "function": plain(self.definition)}
        about, grammar = self.definition.description or "", self.grammar
        if grammar is None:
            return custom_function(self.definition.name, about)
        return custom_function(self.definition.name, about, grammar.syntax, grammar.definition)


def given_tools(request: Request, tools: list[ToolDefinition] | None) -> dict[str, ChatTool]:
    """Return tools by name; of several with one name the first. Raises ApiError 400."""
    found: dict[str, ChatTool] = {}
    for number, tool in enumerate(tools or ()):
        if tool.type not in TOOL_TYPES:
            note_ignored(request, tool.type, f"tools[{number}]")
            continue
        definition = tool.custom if tool.type == "custom" else tool.function or _flat(tool)
        param = f"tools[{number}].{tool.type}"
        if definition is None:
            text = f"the required field `{param}` is missing"
            raise ApiError(400, text, param=param, code="missing_required_parameter")
        if definition.name in found:
            note_ignored(request, f"tools[{number}]", f"{param}.name")
        found.setdefault(definition.name, ChatTool(definition, param))
    return found


def _flat(tool: ToolDefinition) -> FunctionDefinition | None:
    """A function whose fields are those of the tool."""
    if tool.name is None:
        return None
    return FunctionDefinition(
        name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
    )


def tool_offer(tools: dict[str, ChatTool], choice: str | ToolChoice | None, parallel: bool | None) -> ToolOffer | None:
    """Return what a request offers; None: nothing. Raises ApiError 400."""
    if isinstance(choice, ToolChoice) and choice.type in _USES:
        choice = choice.type
    if not tools and choice in (None, "none", "auto"):
        return None
    use, named = ToolUse.AUTO, None
    if isinstance(choice, str):
        use = ToolUse.REQUIRED if choice == "any" else ToolUse(choice)
    elif choice is not None and choice.allowed_tools is not None:
        use = ToolUse(choice.allowed_tools.mode)
        tools = _allowed(tools, choice.allowed_tools)
    elif choice is not None:
        named = _named(choice)
    grammars = {name: grammar for name, tool in tools.items() if (grammar := tool.grammar) is not None}
    return ToolOffer(
        tools=[tool.for_template() for tool in tools.values()],
        use=use,
        named=named,
        parallel=takes_several(parallel, must_call=named is not None or use is ToolUse.REQUIRED),
        inputs={name: input_lark(grammar.syntax, grammar.definition) for name, grammar in grammars.items()},
    )


async def check_inputs(model: ServedModel, tools: dict[str, ChatTool], offer: ToolOffer | None) -> None:
    """Try the grammars of the tools that may be called. Raises ApiError 400, which names the place of one that cannot
    be kept.
    """
    if offer is None or offer.use is ToolUse.NONE:
        return
    for name in offer.inputs:
        if offer.named in (None, name) and (grammar := tools[name].grammar) is not None:
            place = f"{tools[name].place}.format.grammar.definition"
            await check_input(model, grammar.syntax, grammar.definition, place)


def _named(choice: ToolChoice) -> str:
    kind = "custom" if choice.type == "custom" else "function"
    inner = choice.custom if kind == "custom" else choice.function
    name = inner.name if inner else choice.name
    if name is None:
        text = f'`tool_choice.{kind}` is missing: give {{"name": NAME}}'
        raise ApiError(400, text, param=f"tool_choice.{kind}", code="invalid_value")
    return name


def _allowed(tools: dict[str, ChatTool], allowed: AllowedTools) -> dict[str, ChatTool]:
    """Return those of the tools that are allowed. Raises ApiError 400 for a name that is not among them."""
    wanted = {}
    for number, tool in enumerate(allowed.tools):
        inner = tool.get("function") or tool.get("custom")
        name = inner.get("name") if isinstance(inner, dict) else tool.get("name")
        if not isinstance(name, str) or name not in tools:
            param = f"tool_choice.allowed_tools.tools[{number}]"
            raise ApiError(400, f"`{param}` is none of those in `tools`", param=param, code="invalid_value")
        wanted[name] = tools[name]
    return wanted
