"""The limits of the served models that a document about all of them tells: what any one of them takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from homenode.server.core.pooling import generates
from homenode.server.core.prompts import most_prompt_tokens
from homenode.server.models.media import MEDIA, Taken
from homenode.server.models.served_model import ServedModel

_MOST = 2**31 - 1


@dataclass(frozen=True)
class ModelLimits:
    """The largest limits among some models, and what at least one of them can do. `most_sequences`: prompts times n of
    a request that generates; `most_texts`: of one that makes vectors, which the engine gets in turns. `vector_width`:
    elements of its vectors, None where none makes any. `takes_empty_text`: an empty text has a token, the one that
    begins a text. `taken`: the media that one of them takes. `kv_roles`: parts in handing KV over.
    """

    names: tuple[str, ...]
    vocab_size: int
    max_model_len: int
    most_prompt_tokens: int
    most_sequences: int
    most_texts: int
    vector_width: int | None
    takes_empty_text: bool
    fills_middle: bool
    has_thoughts: bool
    taken: Taken
    kv_roles: frozenset[str]

    @property
    def kv_role(self) -> str | None:
        """The only part in handing KV over; None where there is none, or both."""
        return next(iter(self.kv_roles)) if len(self.kv_roles) == 1 else None

    @staticmethod
    def of_any(names: Iterable[str]) -> ModelLimits:
        """Return those of models with these names, of which nothing else is known before they are loaded."""
        return ModelLimits(
            names=tuple(names),
            vocab_size=_MOST,
            max_model_len=_MOST,
            most_prompt_tokens=_MOST,
            most_sequences=_MOST,
            most_texts=_MOST,
            vector_width=_MOST,
            takes_empty_text=True,
            fills_middle=True,
            has_thoughts=True,
            taken=frozenset(kind for kind, medium in MEDIA.items() if medium.input is not None),
            kv_roles=frozenset(("sender", "receiver")),
        )

    @staticmethod
    def of(models: Iterable[ServedModel]) -> ModelLimits:
        """Return those of `models`, at least one."""
        models = tuple(models)
        writers = [model for model in models if generates(model)]
        return ModelLimits(
            names=tuple(name for model in models for name in model.names),
            vocab_size=max(model.ready.vocab_size for model in models),
            max_model_len=max(model.ready.max_model_len for model in models),
            most_prompt_tokens=max(map(most_prompt_tokens, models)),
            most_sequences=max(model.most_sequences for model in models),
            most_texts=max(model.config.max_sequences_per_request for model in models),
            vector_width=max(
                (each.width for model in models if (each := model.ready.pooling) is not None), default=None
            ),
            takes_empty_text=any(model.tokenizer.encode("") for model in models),
            fills_middle=any(model.tokenizer.fill_in_middle is not None for model in writers),
            has_thoughts=any(model.formats.of(with_tools=False).has_thoughts for model in writers),
            taken=frozenset().union(*(model.taken for model in models)),
            kv_roles=frozenset(model.kv_transfer.role for model in models if model.kv_transfer is not None),
        )
