"""Tools, and how freely the model may choose among them, as /v1/chat/completions and /tokenize take them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from starlette.requests import Request

from homenode.chat.offer import ToolOffer, ToolUse, takes_several
from homenode.server.apis.openai.messages import ToolName, plain
from homenode.server.http.failures import ApiError
from homenode.server.http.ignored import note_ignored


class FunctionDefinition(Struct, forbid_unknown_fields=True, kw_only=True):
    """A function that the model may call. `parameters`: the JSON schema of its arguments, an object; None: it has none.
    `strict`: its arguments always fit the schema.
    """

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(Struct, forbid_unknown_fields=True, kw_only=True):
    """A tool. Those of another type than `function` are not there, and are named in x-homenode-ignored."""

    type: str = "function"
    function: FunctionDefinition | None = None


class NamedFunction(Struct, forbid_unknown_fields=True, kw_only=True):
    """The name of a function."""

    name: str


class AllowedTools(Struct, forbid_unknown_fields=True, kw_only=True):
    """Some of the tools, which alone may be called."""

    mode: Literal["auto", "required"] = "auto"
    tools: list[dict[str, Any]]


class ToolChoice(Struct, forbid_unknown_fields=True, kw_only=True):
    """One function that is to be called, its name within `function` or beside it; or several that may be."""

    type: Literal["function", "allowed_tools"] = "function"
    function: NamedFunction | None = None
    name: str | None = None
    allowed_tools: AllowedTools | None = None


Tools = Annotated[list[ToolDefinition], Meta(max_length=1024)]
Functions = Annotated[list[FunctionDefinition], Meta(max_length=1024)]
Choice = Literal["none", "auto", "required"] | ToolChoice


def tool_offer(
    request: Request, tools: list[ToolDefinition] | None, choice: str | ToolChoice | None, parallel: bool | None
) -> ToolOffer | None:
    """What a request offers; None: nothing. Raises ApiError 400."""
    functions = _functions(request, tools or ())
    if not functions and choice in (None, "none", "auto"):
        return None
    use, named = ToolUse.AUTO, None
    if isinstance(choice, str):
        use = ToolUse(choice)
    elif choice is not None and choice.allowed_tools is not None:
        use = ToolUse(choice.allowed_tools.mode)
        functions = _allowed(functions, choice.allowed_tools)
    elif choice is not None:
        named = choice.function.name if choice.function else choice.name
        if named is None:
            text = '`tool_choice.function` is missing: give {"name": NAME}'
            raise ApiError(400, text, param="tool_choice.function", code="invalid_value")
    offered = [{"type": "function", "function": plain(function)} for function in functions]
    several = takes_several(parallel, must_call=named is not None or use is ToolUse.REQUIRED)
    return ToolOffer(tools=offered, use=use, named=named, parallel=several)


def _functions(request: Request, tools: list[ToolDefinition] | tuple[()]) -> list[FunctionDefinition]:
    found: dict[str, FunctionDefinition] = {}
    for number, tool in enumerate(tools):
        if tool.type == "custom":
            text = f"`tools[{number}].type`: custom tools are taken by /v1/responses; give a function here"
            raise ApiError(400, text, param=f"tools[{number}].type", code="unsupported_parameter")
        if tool.type != "function":
            note_ignored(request, tool.type, f"tools[{number}]")
            continue
        if tool.function is None:
            param = f"tools[{number}].function"
            raise ApiError(
                400, f"the required field `{param}` is missing", param=param, code="missing_required_parameter"
            )
        if tool.function.name in found:  # the first of that name is offered
            note_ignored(request, f"tools[{number}]", f"tools[{number}].function.name")
        found.setdefault(tool.function.name, tool.function)
    return list(found.values())


def _allowed(functions: list[FunctionDefinition], allowed: AllowedTools) -> list[FunctionDefinition]:
    """Those of the functions that are allowed. Raises ApiError 400 for a name that is not among them."""
    known = {function.name: function for function in functions}
    wanted = []
    for number, tool in enumerate(allowed.tools):
        inner = tool.get("function")
        name = inner.get("name") if isinstance(inner, dict) else tool.get("name")
        if not isinstance(name, str) or name not in known:
            param = f"tool_choice.allowed_tools.tools[{number}]"
            raise ApiError(400, f"`{param}` is none of the functions in `tools`", param=param, code="invalid_value")
        wanted.append(known[name])
    return wanted
