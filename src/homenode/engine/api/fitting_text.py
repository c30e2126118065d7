"""A text's tokens where they fit the context; one that does not fit is refused before all of it is tokenised."""

from __future__ import annotations

from typing import NoReturn

from homenode.errors import CapacityError
from homenode.model.tokenizer import Tokenizer
from homenode.units import format_count


def encode_fitting(tokenizer: Tokenizer, text: str, max_model_len: int) -> list[int]:
    """Token ids of `text` with the special tokens around it. CapacityError for `max_model_len` tokens or more."""
    if (fewest := tokenizer.fewest_tokens(text)) >= max_model_len:
        _refuse(fewest, max_model_len)
    ids: list[int] = []
    for piece in tokenizer.encode_pieces(text):
        if piece and len(ids) >= max_model_len:
            _refuse(len(ids), max_model_len)
        ids += piece
    return ids


def _refuse(fewest: int, max_model_len: int) -> NoReturn:
    raise CapacityError(
        f"the prompt has at least {format_count(fewest, 'token')}, but a sequence may have at most {max_model_len} with its answer "
        "(--max-model-len); "
        f"shorten the prompt to {format_count(max_model_len - 1, 'token')} or fewer",
        param="prompt",
        prompt_tokens=fewest,
        max_model_len=max_model_len,
    )
