"""WordPiece vocabularies (`bert`): the longest token that a word begins with, then the longest of what is left.

GGUF files write tokens that begin a word with `▁` and leave those inside one bare; BERT's own files mark the latter,
with `##`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from homenode.model.tokenizer.vocabularies.stored_vocabulary import NORMAL, SPACE, StoredVocabulary

_INSIDE = "##"
_LONGEST_WORD = 100  # characters; a longer one is unknown as a whole
CLS, SEP, UNK = "[CLS]", "[SEP]", "[UNK]"


def read_word_pieces(metadata: Mapping[str, Any]) -> StoredVocabulary:
    """The vocabulary of a GGUF file with its tokens as BERT's own files write them."""
    stored = StoredVocabulary(metadata)
    pieces = []
    for token, kind in zip(stored.tokens, stored.types, strict=True):
        inside = kind == NORMAL and not token.startswith(SPACE) and token not in (CLS, SEP, UNK)
        pieces.append(_INSIDE + token if inside else token.removeprefix(SPACE))
    return StoredVocabulary({**metadata, "tokenizer.ggml.tokens": pieces})


def word_piece_tokenizer(stored: StoredVocabulary) -> Tokenizer:
    """The tokenizer of a vocabulary that `read_word_pieces` gave."""
    unknown = stored.token_of("unknown") or UNK
    model = models.WordPiece(vocab=stored.ids, unk_token=unknown, max_input_chars_per_word=_LONGEST_WORD)
    tokenizer = Tokenizer(model)
    lowercase = stored.says("normalizer.lowercase", not _has_capitals(stored))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=stored.says("normalizer.strip_accents", lowercase),
        lowercase=lowercase,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=_INSIDE)
    return tokenizer


def _has_capitals(stored: StoredVocabulary) -> bool:
    """Return whether the vocabulary is one of cased text, which files that do not say it show by their tokens. Names in
    brackets, such as `[unused1]`, are no words.
    """
    words = (token for token, kind in zip(stored.tokens, stored.types, strict=True) if kind == NORMAL)
    return any(word != word.lower() for word in words if not word.startswith("["))
