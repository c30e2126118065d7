"""The bodies and answers of the endpoints that say how near texts are to each other."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from homenode.server.http.decoding import FieldHints

_Priority = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
_Kept = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
HINTS = FieldHints({}, {})


class ScoreRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /v1/score: one text against one or several, or as many pairs. `activation`: false gives what the
    model computes for a pair, in place of a number from 0 to 1; of models that make vectors the score is their cosine.
    `truncate_prompt_tokens`: tokens that are kept of each text, -1 for as many as fit.
    """

    text_1: str | list[str]
    text_2: str | list[str]
    model: str | None = None
    truncate_prompt_tokens: _Kept | None = None
    activation: bool | None = None
    priority: _Priority | None = None
    user: str | None = None


class RerankDocument(Struct, forbid_unknown_fields=True):
    """A document as an object that has its text."""

    text: str


class RerankRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /v1/rerank. `top_n`: how many of the best are told; all without it. `return_documents`: false leaves
    their texts out. The other fields are those of /v1/score.
    """

    query: str
    documents: list[str | RerankDocument]
    model: str | None = None
    top_n: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    return_documents: bool | None = None
    truncate_prompt_tokens: _Kept | None = None
    activation: bool | None = None
    priority: _Priority | None = None
    user: str | None = None


class ScoreUsage(Struct):
    """Tokens of all texts."""

    prompt_tokens: int
    total_tokens: int


class Score(Struct, kw_only=True):
    """A score of how near the texts of a pair are."""

    index: int
    object: Literal["score"] = "score"
    score: float


class ScoreList(Struct, kw_only=True):
    """Answer of /v1/score."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Score]
    usage: ScoreUsage


class RankedDocument(Struct, kw_only=True):
    """A document: its place among those that were given, and how near to the query it is."""

    index: int
    document: RerankDocument | UnsetType = UNSET
    relevance_score: float


class RankedList(Struct, kw_only=True):
    """Answer of /v1/rerank, the nearest document first."""

    id: str
    object: Literal["list"] = "list"
    model: str
    results: list[RankedDocument]
    usage: ScoreUsage
