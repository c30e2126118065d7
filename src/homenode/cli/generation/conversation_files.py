"""Inputs of `homenode render` and `homenode parse`: the text side of a model, and files with conversations and
tools.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from homenode.errors import UserError

if TYPE_CHECKING:
    from homenode.model.tokenizer import Tokenizer

_LARGEST_FILE = 64 << 20
_OWN_VALUES = ("messages", "tools", "add_generation_prompt")


def read_file(flag: str, path: str) -> str:
    """The text of a file, line ends and all; what is no UTF-8 becomes U+FFFD. UserError, with the flag, for a file that
    cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise UserError(f"{flag} {path} cannot be read: {error.strerror}", param=flag.lstrip("-")) from None
    if len(content) > _LARGEST_FILE:
        raise UserError(f"{flag} {path} has more than {_LARGEST_FILE >> 20} MiB", param=flag.lstrip("-"))
    return content.decode("utf-8", "replace")


def load_text_side(model: str | None, template: str | None) -> Tokenizer:
    """Tokenizer and chat template of a model, whose weights are not read. `template`: a file that stands in for the
    model's.
    """
    from homenode.cli.models.announcement import announce_fetch
    from homenode.engine.config import EngineConfig
    from homenode.engine.model_path.locate import locate_model
    from homenode.model.tokenizer import load_model_tokenizer

    source = None if template is None else read_file("--template", template)
    config = EngineConfig.of(model, {})
    config = locate_model(config, announce_fetch(config))
    tokenizer = load_model_tokenizer(Path(str(config.model.path)), source)
    if not tokenizer.has_chat_template:
        raise UserError("this model has no chat template; give one with --template", param="template")
    return tokenizer


def read_messages(path: str) -> list[dict[str, Any]]:
    """A conversation: a JSON list of messages, or an object with `messages`, each an object with a role."""
    value = _json("--messages", path)
    if isinstance(value, dict):
        value = value.get("messages")
    if not isinstance(value, list) or not value:
        raise UserError(f"--messages {path} is no conversation: expected a list of messages", param="messages")
    for index, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise UserError(
                f"--messages {path}: [{index}] is no message: expected an object with a role", param="messages"
            )
    return value


def read_tools(path: str | None) -> list[dict[str, Any]]:
    """Tools, as a request has them."""
    value = [] if path is None else _json("--tools", path)
    if not isinstance(value, list):
        raise UserError(f"--tools {path} has no tools: expected a list of them", param="tools")
    for index, tool in enumerate(value):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise UserError(
                f"--tools {path}: [{index}] is no tool: expected an object with a function that has a name",
                param="tools",
            )
    return value


def read_template_values(text: str | None) -> dict[str, Any]:
    """Values for the chat template."""
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"--chat-template-kwargs is no JSON: {error}", param="chat_template_kwargs") from None
    if not isinstance(value, dict):
        raise UserError("--chat-template-kwargs is no JSON object", param="chat_template_kwargs")
    for name in _OWN_VALUES:
        if name in value:
            raise UserError(f"--chat-template-kwargs may not set {name}", param="chat_template_kwargs")
    return value


def _json(flag: str, path: str) -> Any:
    try:
        return json.loads(read_file(flag, path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{flag} {path} is no JSON: {error}", param=flag.lstrip("-")) from None
