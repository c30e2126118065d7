"""What types cannot say about handing KV over in the OpenAPI document: it depends on the part this server has."""

from __future__ import annotations

from typing import Any

from homenode.server.core.state import ServerState
from homenode.transfer.wire.message import PROTOCOL

_FLAGS = ("do_remote_decode", "do_remote_prefill")
# A tuple whose entries are alike, without `prefixItems`, which not every reader of these documents gets right.
_VERSIONS = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2, "default": list(PROTOCOL)}


def tighten_transfer(components: dict[str, Any], state: ServerState) -> None:
    """`kv_transfer_params` as this server takes them: a flag of the other part, or of any where it has none, can only
    be off.
    """
    components["Published"]["properties"]["protocol"] = _VERSIONS
    role = state.kv_transfer.role if state.kv_transfer is not None else None
    works = {"sender": "do_remote_decode", "receiver": "do_remote_prefill"}.get(role or "")
    params = components["KvTransferParams"]
    for flag in _FLAGS:
        if flag != works:
            params["properties"][flag] = {"enum": [False, None], "default": None}
    if works is None:
        return
    needed = {"ticket": {"type": "string"}}
    if role == "sender":
        params["properties"]["peer"]["anyOf"][0] = {
            "allOf": [params["properties"]["peer"]["anyOf"][0], {"properties": {"role": {"const": "receiver"}}}]
        }
        needed["peer"] = {"type": "object"}
    params.setdefault("allOf", []).append(_off_or(works, {"properties": needed, "required": list(needed)}))


def _off(flag: str) -> dict[str, Any]:
    return {"properties": {flag: {"enum": [False, None]}}}


def _off_or(flag: str, needs: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [_off(flag), needs]}
