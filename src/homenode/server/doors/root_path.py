"""The path under which a reverse proxy shows this server, such as /llm: requests come with it or without."""

from __future__ import annotations

from starlette.types import Scope


def strip_root_path(scope: Scope, root: str) -> None:
    """Take the root path off a request's path where it has one: a proxy may pass requests on with it or without."""
    path: str = scope["path"]
    if not root or not (path == root or path.startswith(f"{root}/")):
        return
    scope["path"] = path.removeprefix(root) or "/"
    raw: bytes | None = scope.get("raw_path")
    if raw is not None:
        scope["raw_path"] = raw.removeprefix(root.encode()) or b"/"
