"""The parts that every kind of stored vocabulary has: tokens, their types, and the tokens that have a role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from homenode.errors import CheckpointError
from homenode.model.formats.gguf_token_ids import token_id_of
from homenode.model.tokenizer.vocabularies.token_bytes import placeholder
from homenode.units import format_count

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # types of tokens; 5 is unused, 6 a byte
SPACE = "▁"  # how a vocabulary of text writes a space


@dataclass(frozen=True)
class StoredVocabulary:
    """The vocabulary in a GGUF file's metadata. Its members raise CheckpointError for values that do not fit."""

    metadata: Mapping[str, Any]

    @cached_property
    def tokens(self) -> list[str]:
        """Every token as it is written, by id."""
        return self.strings("tokens")

    @cached_property
    def types(self) -> Sequence[int]:
        """The type of every token; all are normal where the file does not say."""
        types = self.metadata.get("tokenizer.ggml.token_type") or [NORMAL] * len(self.tokens)
        found: list[int] = self._for_each_token("token_type", types)
        return found

    @cached_property
    def scores(self) -> Sequence[float]:
        """The score of every token."""
        found: list[float] = self._for_each_token("scores", self.metadata.get("tokenizer.ggml.scores"))
        return found

    @cached_property
    def ids(self) -> dict[str, int]:
        """Ids by token; of equal tokens the first counts, the others get names nothing matches so that ids keep their
        places.
        """
        ids: dict[str, int] = {}
        for index, token in enumerate(self.tokens):
            ids[token if token not in ids else placeholder(index, token)] = index
        return ids

    @cached_property
    def merges(self) -> list[tuple[str, str]]:
        """The merges of tokens that there are, first ones first."""
        pairs = [_pair(merge) for merge in self.strings("merges")]
        return [(a, b) for a, b in pairs if a in self.ids and b in self.ids and a + b in self.ids]

    @property
    def architecture(self) -> str:
        """Return the architecture of the model that the vocabulary is of."""
        return str(self.metadata.get("general.architecture", ""))

    def strings(self, key: str) -> list[str]:
        """The list of texts under `tokenizer.ggml.<key>`."""
        name = f"tokenizer.ggml.{key}"
        values = self.metadata.get(name)
        if not isinstance(values, list) or not values or not all(isinstance(v, str) for v in values):
            raise CheckpointError(f"{name} must be a list of strings; found {type(values).__name__}", key=name)
        return values

    def says(self, key: str, otherwise: bool) -> bool:
        """The truth value under `tokenizer.ggml.<key>`; `otherwise`: where the file does not have it."""
        return bool(self.metadata.get(f"tokenizer.ggml.{key}", otherwise))

    def token_of(self, *roles: str) -> str | None:
        """The token with the first of these roles (bos, eos, unknown, ...) that one has."""
        ids = (token_id_of(self.metadata, role, len(self.tokens)) for role in roles)
        return next((self.tokens[index] for index in ids if index is not None), None)

    def _for_each_token(self, key: str, values: Any) -> Any:
        if not isinstance(values, list) or len(values) != len(self.tokens):
            count = format_count(len(self.tokens), "token")
            raise CheckpointError(
                f"tokenizer.ggml.{key} must hold one number for each of {count}", key=f"tokenizer.ggml.{key}"
            )
        return values


def _pair(merge: str) -> tuple[str, str]:
    at = merge.find(" ", 1)
    if at < 0:
        raise CheckpointError(f"tokenizer.ggml.merges holds {merge!r}, which is no pair")
    return merge[:at], merge[at + 1 :]
