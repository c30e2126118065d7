"""The tools of a request to the Messages API, as chat templates know them."""

from __future__ import annotations

from typing import Any

from homenode.chat.offer import ToolOffer, ToolUse, takes_several
from homenode.server.apis.anthropic.blocks import needed
from homenode.server.apis.anthropic.request import MessagesTool, MessagesToolChoice
from homenode.server.core.media.content import Note
from homenode.server.http.failures import ApiError

OWN_TYPES = (None, "custom", "function")  # of tools that the client runs
_USES = {"auto": ToolUse.AUTO, "any": ToolUse.REQUIRED, "tool": ToolUse.REQUIRED, "none": ToolUse.NONE}


def tool_offer(tools: list[MessagesTool] | None, choice: MessagesToolChoice | None, note: Note) -> ToolOffer | None:
    """Return what is offered to the model; None for nothing. Tools that another server runs are left out, and their
    types told to `note`. Raises ApiError 400.
    """
    offered: dict[str, dict[str, Any]] = {}
    for number, tool in enumerate(tools or ()):
        if tool.type not in OWN_TYPES:
            note(str(tool.type), f"tools[{number}].type")
            continue
        function = _function(tool, f"tools[{number}]")
        name = function["function"]["name"]
        if offered.setdefault(name, function) != function:
            param = f"tools[{number}].name"
            text = f"`{param}`: there are two unlike tools `{name}`; give each a name of its own"
            raise ApiError(400, text, param=param, code="invalid_value")
    choice = choice or MessagesToolChoice(type="auto")
    named = choice.name if choice.type == "tool" else None
    if choice.type == "tool" and named not in offered:
        told = "missing" if named is None else f"`{named[:200]}`, which is not among the tools"
        raise ApiError(400, f"`tool_choice.name` is {told}", param="tool_choice.name", code="invalid_value")
    if choice.type == "any" and not tools:
        text = "`tool_choice` wants a call, but `tools` has nothing to call"
        raise ApiError(400, text, param="tool_choice", code="invalid_value")
    if not offered:
        return None
    one = choice.disable_parallel_tool_use
    several = takes_several(None if one is None else not one, must_call=choice.type in ("any", "tool"))
    return ToolOffer(tools=list(offered.values()), use=_USES[choice.type], named=named, parallel=several)


def _function(tool: MessagesTool, place: str) -> dict[str, Any]:
    function: dict[str, Any] = {"name": needed(tool.name, place, "name")}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = needed(tool.input_schema, place, "input_schema")
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}
