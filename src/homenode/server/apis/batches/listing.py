"""Pages of a list, the newest first, in the words of the OpenAI API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Literal, Protocol, TypeVar

from msgspec import Struct
from starlette.requests import Request

from homenode.server.http.failures import ApiError


class _HasId(Protocol):
    @property
    def id(self) -> str: ...


T = TypeVar("T", bound=_HasId)


class Page(Struct, Generic[T], kw_only=True):
    """A page of a list. `has_more`: more follow behind `last_id`."""

    object: Literal["list"] = "list"
    data: list[T]
    first_id: str | None
    last_id: str | None
    has_more: bool


def page_query(most: int, usual: int) -> dict[str, Any]:
    """The parameters of a list, as OpenAPI has them."""
    return {
        "limit": {"type": "integer", "minimum": 1, "maximum": most, "default": usual},
        "after": {"type": "string"},
        "order": {"enum": ["asc", "desc"], "default": "desc"},
    }


def page_of(request: Request, newest_first: Sequence[T], most: int, usual: int) -> Page[T]:
    """The page that a request asks for. Raises ApiError 400."""
    asked = request.query_params
    text = asked.get("limit", str(usual))
    if not (text.isascii() and text.isdecimal() and len(text) < 8 and 1 <= int(text) <= most):
        raise ApiError(400, f"`limit` is {text[:50]!r}; give 1 to {most}", param="limit", code="invalid_value")
    order = asked.get("order", "desc")
    if order not in ("asc", "desc"):
        raise ApiError(400, f"`order` is {order[:50]!r}; give asc or desc", param="order", code="invalid_value")
    all_of_them = list(newest_first) if order == "desc" else list(reversed(newest_first))
    begin = 0
    if (after := asked.get("after")) is not None:
        begin = next((i + 1 for i, each in enumerate(all_of_them) if each.id == after), len(all_of_them))
    data = all_of_them[begin : begin + int(text)]
    return Page(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
        has_more=begin + len(data) < len(all_of_them),
    )
