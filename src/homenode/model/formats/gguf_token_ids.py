"""The tokens that a GGUF file names for a role: bos, eos, eot, eom, unknown, padding.

What a missing key means is what the reference reader takes it to mean: 1, 2 and 0 in SentencePiece vocabularies. An id
outside the vocabulary means nothing, as no row of the model can give it: some converters write the largest number
there is for "none".
"""

from __future__ import annotations

from collections.abc import Mapping

from homenode.errors import CheckpointError
from homenode.model.formats.bounded_files import quoted

_OF_SENTENCEPIECE = {"bos": 1, "eos": 2, "unknown": 0}


def token_ids_of(metadata: Mapping[str, object], role: str, vocab_size: int) -> tuple[int, ...]:
    """The ids below `vocab_size` under `tokenizer.ggml.<role>_token_id`, a number or a list. Raises CheckpointError
    for anything else.
    """
    key = f"tokenizer.ggml.{role}_token_id"
    value = metadata.get(key)
    named = value if isinstance(value, list) else [] if value is None else [value]
    ids: dict[int, None] = {}  # keeps the order, once each
    for item in named:
        if not isinstance(item, int) or isinstance(item, bool):
            raise CheckpointError(
                f"{key}: seen {quoted(value)}, wanted a token id or a list of them; fetch or convert the model again",
                key=key,
            )
        if 0 <= item < vocab_size:
            ids[item] = None
    usual = _OF_SENTENCEPIECE.get(role) if metadata.get("tokenizer.ggml.model") == "llama" else None
    if not ids and usual is not None and usual < vocab_size:
        return (usual,)
    return tuple(ids)


def token_id_of(metadata: Mapping[str, object], role: str, vocab_size: int) -> int | None:
    """The first of them, None where there is none."""
    return next(iter(token_ids_of(metadata, role, vocab_size)), None)
