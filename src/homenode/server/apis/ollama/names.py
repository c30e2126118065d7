"""Names of models as Ollama writes them: with a tag behind, which is `latest` where nobody says another one."""

from __future__ import annotations

TAG = ":latest"


def tagged(name: str) -> str:
    """The name with a tag."""
    return name if ":" in name else name + TAG
