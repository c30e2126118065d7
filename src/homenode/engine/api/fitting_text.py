"""A text's tokens where they fit the context; one that does not fit is refused before all of it is tokenised."""

from __future__ import annotations

from typing import NoReturn

from homenode.errors import ContextLengthError
from homenode.model.tokenizer import Tokenizer
from homenode.model.tokenizer.surrounding_tokens import beginning
from homenode.units import format_count


def encode_fitting(tokenizer: Tokenizer, text: str, most: int, add_special_tokens: bool = True) -> list[int]:
    """Token ids of `text` with the special tokens around it. ContextLengthError for more than `most`."""
    if (fewest := tokenizer.fewest_tokens(text)) > most:
        _refuse(fewest, most)
    ids: list[int] = []
    for piece in tokenizer.encode_pieces(text, add_special_tokens):
        if piece and len(ids) > most:
            _refuse(len(ids), most)
        ids += piece
    return ids


def encode_beginning(tokenizer: Tokenizer, text: str, most: int) -> list[int]:
    """The first `most` of the token ids of `text` with the special tokens around it, which stay."""
    ids: list[int] = []
    for piece in tokenizer.encode_pieces(text):
        if len(ids) > most:
            break
        ids += piece
    return beginning(ids, most, tokenizer.surrounding.after)


def _refuse(fewest: int, most: int) -> NoReturn:
    raise ContextLengthError(
        f"the maximum context length is "
        f"{format_count(most, 'token')} for a prompt (--max-model-len), and this one has at least "
        f"{format_count(fewest, 'token')}; shorten it to {format_count(most, 'token')} or fewer",
        param="prompt",
        prompt_tokens=fewest,
        most=most,
    )
