"""The models of a server of several, for endpoints that speak of those that are not loaded, too."""

from __future__ import annotations

from typing import Any

from homenode.cpuset import format_cpu_list
from homenode.server.core.state import ServerState
from homenode.server.http.failures import ApiError
from homenode.server.keys.caller import caller
from homenode.server.models.kept_model import KeptModel
from homenode.server.models.kept_models import KeptModels


def kept_models(state: ServerState) -> KeptModels:
    """Return the models of a server of which `state.models.changes` says that they are loaded when they are asked
    for.
    """
    assert isinstance(state.models, KeptModels)
    return state.models


def check_admin() -> None:
    """Raises ApiError 403 where the key of the request may not change which models are loaded."""
    if not caller().is_admin:
        text = f"the key `{caller().name}` may not load or unload models; give it `admin = true` in --api-key-file"
        raise ApiError(403, text, code="not_admin")


def status_of(kept: KeptModel) -> dict[str, Any]:
    """The state of a model, and where it is or is to be."""
    planned = kept.place
    told: dict[str, Any] = {
        "value": kept.state.word,
        "memory_bytes": planned.total,
        "memory": {str(node): size for node, size in planned.memory.items()},
        "nodes": list(planned.nodes),
        "cpus": format_cpu_list(planned.cpus),
        "place": planned.reason,
        "pin": planned.entry.pin,
        "requests": kept.leases,
        "waiting": kept.waiting,
        "loads": kept.loads,
    }
    done, total = kept.progress
    if kept.state.word == "loading" and total:
        told["progress"] = round(done / total, 3)
    if kept.reason is not None:
        told["reason"] = kept.reason
    return told
