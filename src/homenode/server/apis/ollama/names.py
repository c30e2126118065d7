"""Names of models as Ollama writes them: with a tag behind, which is `latest` where nobody says another one."""

from __future__ import annotations

from homenode.server.core.state import ServerState

_TAG = ":latest"


def check_name(state: ServerState, name: str) -> str:
    """The name of the served model that `name` means, with or without the tag. Raises ApiError 404."""
    return state.model(name if name in state.models else name.removesuffix(_TAG))


def tagged(name: str) -> str:
    """The name with a tag."""
    return name if ":" in name else name + _TAG
