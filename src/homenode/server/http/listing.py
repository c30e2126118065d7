"""Pages of a list, the newest first, in the words of the OpenAI API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, TypeVar

from msgspec import Struct
from starlette.requests import Request

from homenode.server.http.failures import ApiError

T = TypeVar("T")
S = TypeVar("S")


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


def page_of(
    request: Request,
    newest_first: Sequence[S],
    id_of: Callable[[S], str],
    *,
    shown: Callable[[S], T],
    most: int,
    usual: int,
) -> Page[T]:
    """The page that a request asks for, each `shown`. Raises ApiError 400, also where `after` names none of them."""
    asked = request.query_params
    text = asked.get("limit", str(usual))
    if not (text.isascii() and text.isdecimal() and len(text) < 8 and 1 <= int(text) <= most):
        raise ApiError(400, f"`limit` is {text[:50]!r}; give 1 to {most}", param="limit", code="invalid_value")
    order = asked.get("order", "desc")
    if order not in ("asc", "desc"):
        raise ApiError(400, f"`order` is {order[:50]!r}; give asc or desc", param="order", code="invalid_value")
    ordered = newest_first if order == "desc" else newest_first[::-1]
    begin = 0
    if (after := asked.get("after")) is not None:
        found = next((place for place, each in enumerate(ordered) if id_of(each) == after), None)
        if found is None:
            text = f"`after`: there is no {after[:100]!r} in this list; begin anew without `after`"
            raise ApiError(400, text, param="after", code="invalid_value")
        begin = found + 1
    page = ordered[begin : begin + int(text)]
    return Page(
        data=[shown(each) for each in page],
        first_id=id_of(page[0]) if page else None,
        last_id=id_of(page[-1]) if page else None,
        has_more=begin + len(page) < len(ordered),
    )
