"""SentencePiece vocabularies: byte pair encoding by scores (`llama`), and the likeliest way to divide a text
(`t5`, Unigram).

Both write a space as `▁`. Byte pair encoding merges the adjacent pair whose union scores best; as a list of merges
that is every way to split a token in two, ordered by the token's score.
"""

from __future__ import annotations

from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from homenode.errors import CheckpointError
from homenode.model.tokenizer.vocabularies.scored_merges import scored_merges
from homenode.model.tokenizer.vocabularies.stored_vocabulary import NORMAL, SPACE, UNKNOWN, StoredVocabulary
from homenode.model.tokenizer.vocabularies.token_bytes import placeholder

_CHARSMAP = "tokenizer.ggml.precompiled_charsmap"
_BYTE, _UNUSED = 6, 5
# Their files say whether T5 joins spaces; of encoders the original always does, whatever a converter made of it.
T5 = ("t5", "t5encoder")


def byte_pair_tokenizer_of_scores(stored: StoredVocabulary) -> Tokenizer:
    """The tokenizer of a vocabulary whose merges are told by scores."""
    scores, types = stored.scores, stored.types
    unknown = _unknown(stored) or stored.tokens[0]
    merges = scored_merges({t: i for t, i in stored.ids.items() if types[i] == NORMAL}, scores)
    tokenizer = Tokenizer(
        models.BPE(vocab=stored.ids, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    prefix = stored.says("add_space_prefix", True)
    steps: list[Any] = [normalizers.Prepend(SPACE)] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    tokenizer.decoder = _decoder(prefix=prefix)
    return tokenizer


def unigram_tokenizer(stored: StoredVocabulary) -> Tokenizer:
    """The tokenizer of a vocabulary whose tokens have logarithms of probabilities.

    Characters are replaced first as the file's character map says, which is NFKC for most. Raises CheckpointError for
    a file without an unknown token, or whose map is no list of bytes.
    """
    unknown = _unknown(stored)
    if unknown is None:
        raise CheckpointError(
            "a Unigram vocabulary (tokenizer.ggml.model 't5') needs a token of type 2, for what no other token writes"
        )
    model = models.Unigram(_scored_pieces(stored), unk_id=stored.ids[unknown], byte_fallback=_BYTE in stored.types)
    tokenizer = Tokenizer(model)
    prefix = stored.says("add_space_prefix", True)
    scheme = "always" if prefix else "never"
    if (charsmap := _charsmap(stored)) is not None:
        tokenizer.normalizer = charsmap
    if stored.architecture not in T5 or stored.says("remove_extra_whitespaces", True):
        marks = pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), marks])
    else:  # several spaces are several marks, and a token may be a run of these
        marks = pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme, split=False)
        words = pre_tokenizers.Split(Regex(f"{SPACE}*[^{SPACE}]+|{SPACE}+"), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([marks, words])
    tokenizer.decoder = _decoder(prefix=prefix)
    return tokenizer


def _unknown(stored: StoredVocabulary) -> str | None:
    of_type = (token for token, kind in zip(stored.tokens, stored.types, strict=True) if kind == UNKNOWN)
    return next(of_type, None) or stored.token_of("unknown")


def _scored_pieces(stored: StoredVocabulary) -> list[tuple[str, float]]:
    """Every token with its score. Unused ones hold their places by names that no text has, and none scores lower than
    the lowest of those in use: what an unknown character costs follows from that.
    """
    lowest = min((s for s, kind in zip(stored.scores, stored.types, strict=True) if kind == NORMAL), default=0.0)
    pieces = list(stored.ids)
    for index, kind in enumerate(stored.types):
        if kind == _UNUSED:
            pieces[index] = placeholder(index, stored.tokens[index])
    return [(piece, max(float(score), lowest)) for piece, score in zip(pieces, stored.scores, strict=True)]


def _charsmap(stored: StoredVocabulary) -> normalizers.Normalizer | None:
    values = stored.metadata.get(_CHARSMAP)
    if not values:
        return None
    if not isinstance(values, list) or not all(isinstance(v, int) and -128 <= v < 256 for v in values):
        raise CheckpointError(f"{_CHARSMAP} must be a list of bytes; found {type(values).__name__}", key=_CHARSMAP)
    return normalizers.Precompiled(bytes(value & 0xFF for value in values))


def _decoder(*, prefix: bool) -> decoders.Decoder:
    undo: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*undo, decoders.Strip(" ", 1, 0)] if prefix else undo)
