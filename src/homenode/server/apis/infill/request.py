"""The body of POST /infill, in the words of llama.cpp."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from homenode.server.core.generation_fields import MOST_STOPS
from homenode.server.core.setting_fields import SettingFields
from homenode.server.http.decoding import FieldHints

Milliseconds = Annotated[float, Meta(ge=-1, le=1e9)]
HINTS = FieldHints({}, {})


class InfillExtra(Struct, kw_only=True):
    """A piece of another file. What else is said of it, such as when it was seen, plays no part."""

    text: str
    filename: str = ""


class InfillRequest(SettingFields, kw_only=True):
    """Body of POST /infill. `prompt`: what of the middle is there already. `n_predict`: -1 for as many tokens as the
    context takes; 0 only computes the prompt, so that a later request finds it. `n_indent`: the middle ends before a
    line that is indented less. `t_max_predict_ms`: the middle ends at the first line that is whole after this time.
    """

    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: Annotated[list[InfillExtra], Meta(max_length=1024)] | None = None
    prompt: str | None = None
    model: str | None = None
    n_predict: Annotated[int, Meta(ge=-2, le=2**31 - 1)] | None = None
    max_tokens: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    n_indent: Annotated[int, Meta(ge=0, le=10_000)] | None = None
    t_max_predict_ms: Milliseconds | None = None
    t_max_prompt_ms: Milliseconds | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: Annotated[list[Annotated[str, Meta(max_length=1024)]], Meta(max_length=MOST_STOPS)] | None = None
    samplers: Annotated[list[str], Meta(max_length=64)] | None = None
    response_fields: Annotated[list[str], Meta(max_length=64)] | None = None
    repeat_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    cache_prompt: bool | None = None
    stream: bool | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    cache_salt: Annotated[str, Meta(max_length=128)] | None = None
    speculative: bool | None = None  # false: no token of the answer is drafted

    @property
    def most_tokens(self) -> int | None:
        """Tokens of the middle at most; None: as many as the context takes."""
        asked = self.max_tokens if self.n_predict is None else self.n_predict
        return None if asked is None or asked < 0 else asked
