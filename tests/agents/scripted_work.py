"""What a scripted model does for an agent: it looks at a file in two ways, one after another, and says that it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SAID = ("Look into notes.txt, mark-of-the-user-1.", "Look once more, mark-of-the-user-2.", "And mark-of-the-user-3.")
DONE = "The notes were read, mark-of-the-answer."
ECHO = "echo mark-of-a-command; cat notes.txt"
Call = tuple[str, dict[str, Any]]


def next_call(body: Mapping[str, Any]) -> Call | None:
    """The tool to use now and its arguments, for the body of a request of either API; None where it is time to answer:
    to a user's first message two calls are made, to later ones one.
    """
    names = _tools(body)
    asked, results = _asked_and_results(body)
    if results >= (2 if asked == 1 else 1):
        return None
    if "Bash" in names:
        read = {"file_path": "notes.txt"}
        return ("Read", read) if results and "Read" in names else ("Bash", {"command": ECHO, "description": "Looks."})
    for name, field in (("exec_command", "cmd"), ("shell_command", "command")):
        if name in names:
            return name, {field: ECHO}
    return None


def _tools(body: Mapping[str, Any]) -> list[str]:
    tools = list(body.get("tools") or ())
    for item in body.get("input") or ():
        if isinstance(item, Mapping) and item.get("type") == "additional_tools":
            tools += item["tools"]
    return [str(tool.get("name")) for tool in tools]


def _asked_and_results(body: Mapping[str, Any]) -> tuple[int, int]:
    """How many of the user's messages there are, and how many results behind the last one."""
    asked = results = 0
    for text in _kinds(body):
        if text is None:
            results += 1
        elif text in SAID:
            asked, results = asked + 1, 0
    return asked, results


def _kinds(body: Mapping[str, Any]) -> list[str | None]:
    """The texts of messages in order, and None for each result of a tool."""
    found: list[str | None] = []
    items: Sequence[Any] = body.get("messages") or body.get("input") or ()
    for item in items:
        if str(item.get("type")).endswith("_output"):
            found.append(None)
            continue
        content = item.get("content")
        if isinstance(content, str):
            found.append(content)
            continue
        for block in content or ():
            found.append(None if block.get("type") == "tool_result" else block.get("text") or "")
    return found
