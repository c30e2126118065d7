"""Byte pair encoding by a list of merges: over the bytes of words, or over text as it is.

Over bytes each is written as a letter (`gpt2`). Over text a space is `▁`, or cuts words and is left out; a character
without a token is taken apart into bytes, `<0x0A>`, where the vocabulary has these (`gemma4`, `whitespace`).
"""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from homenode.model.tokenizer.vocabularies.pretokenizers import Alphabet, PreTokenizer
from homenode.model.tokenizer.vocabularies.stored_vocabulary import SPACE, StoredVocabulary


def byte_pair_tokenizer(stored: StoredVocabulary, cut: PreTokenizer) -> Tokenizer:
    """The tokenizer of a vocabulary with merges, whose texts are cut by `cut`."""
    match cut.alphabet:
        case Alphabet.BYTES:
            return _of_bytes(stored, cut)
        case Alphabet.TEXT:
            return _of_text(stored, cut)
        case Alphabet.WORDS:
            return _of_words(stored, cut)


def _of_bytes(stored: StoredVocabulary, cut: PreTokenizer) -> Tokenizer:
    model = models.BPE(vocab=stored.ids, merges=stored.merges, ignore_merges=cut.whole_words)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = _normalizer(stored)
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*_cuts(cut), letters])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _of_text(stored: StoredVocabulary, cut: PreTokenizer) -> Tokenizer:
    tokenizer = Tokenizer(
        models.BPE(
            vocab=stored.ids,
            merges=stored.merges,
            unk_token=stored.token_of("unknown"),
            fuse_unk=True,
            byte_fallback=True,
            ignore_merges=cut.whole_words,
        )
    )
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(_cuts(cut))
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def _of_words(stored: StoredVocabulary, cut: PreTokenizer) -> Tokenizer:
    """The white space between words is lost; so decoded text has none."""
    unknown = stored.token_of("unknown")
    model = models.BPE(vocab=stored.ids, merges=stored.merges, unk_token=unknown, ignore_merges=cut.whole_words)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = _normalizer(stored)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def _normalizer(stored: StoredVocabulary) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = []
    if stored.says("normalizer.lowercase", False):
        steps.append(normalizers.Lowercase())
    if stored.says("normalizer.strip_accents", False):
        steps.append(normalizers.StripAccents())
    return normalizers.Sequence(steps)


def _cuts(cut: PreTokenizer) -> list[pre_tokenizers.PreTokenizer]:
    return [pre_tokenizers.Split(Regex(expression), "isolated") for expression in cut.expressions]
