"""The tokenizer in a GGUF file's metadata, of every kind that decoders and encoders have.

What a kind makes of a text is in its own module; here are the tokens that have a name of their own in texts, and those
that stand around a text or two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from homenode.errors import CheckpointError, UnsupportedError, UserError
from homenode.model.tokenizer.vocabularies import sentencepiece, word_pieces
from homenode.model.tokenizer.vocabularies.byte_pairs import byte_pair_tokenizer
from homenode.model.tokenizer.vocabularies.library import library_from_json
from homenode.model.tokenizer.vocabularies.pretokenizers import pre_tokenizer
from homenode.model.tokenizer.vocabularies.stop_tokens import VocabularyNames, known_stop_tokens
from homenode.model.tokenizer.vocabularies.stored_vocabulary import CONTROL, UNKNOWN, USER_DEFINED, StoredVocabulary

_PHI3 = re.compile(r"phi[-_ ]?3")
_KEEP_SPACE = ("<unk>", "<s>", "<|endoftext|>")


@dataclass(frozen=True)
class VocabularySurroundings:
    """Tokens around a text, None for none. Of two texts each has `after` behind it, and `between` is in the middle
    besides; the tokens of the second one are of type `second_type`.
    """

    before: str | None = None
    after: str | None = None
    between: str | None = None
    second_type: int = 0


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer a GGUF file's metadata describes.

    Raises CheckpointError for missing or inconsistent parts, UnsupportedError for vocabulary kinds and pre-tokenizers
    that are not known.
    """
    whole = metadata.get("tokenizer.huggingface.json")
    if isinstance(whole, str):
        return library_from_json(whole, "tokenizer.huggingface.json")
    kind = metadata.get("tokenizer.ggml.model")
    make = _KINDS.get(kind) if isinstance(kind, str) else None
    if make is None:
        what = _REFUSED.get(str(kind), "which is not known")
        raise UnsupportedError(
            f"vocabulary kind {kind!r} (tokenizer.ggml.model) is not supported, {what}; supported: "
            f"{', '.join(_KINDS)}. Give the model's Hugging Face folder (with tokenizer.json) by --tokenizer"
        )
    stored = word_pieces.read_word_pieces(metadata) if kind == "bert" else StoredVocabulary(metadata)
    try:
        tokenizer, surroundings = make(stored)
        _add_special(tokenizer, stored)
        surround(tokenizer, surroundings)
    except UserError:
        raise
    except Exception as error:  # the library raises bare Exception for vocabularies and merges that do not fit
        raise CheckpointError(f"the vocabulary in the file does not fit together: {error}") from error
    return tokenizer


def _gpt2(stored: StoredVocabulary) -> tuple[Tokenizer, VocabularySurroundings]:
    cut = pre_tokenizer(str(stored.metadata.get("tokenizer.ggml.pre") or "default"), stored.architecture)
    begins, ends = stored.says("add_bos_token", cut.begins_with_bos), stored.says("add_eos_token", cut.ends_with_eos)
    around = _bos_and_eos(stored, begins, ends, stored.says("add_sep_token", cut.ends_with_eos))
    return byte_pair_tokenizer(stored, cut), around


def _whitespace(stored: StoredVocabulary) -> tuple[Tokenizer, VocabularySurroundings]:
    around = _bos_and_eos(stored, stored.says("add_bos_token", True), stored.says("add_eos_token", True), True)
    return byte_pair_tokenizer(stored, pre_tokenizer("whitespace")), around


def _gemma4(stored: StoredVocabulary) -> tuple[Tokenizer, VocabularySurroundings]:
    around = _bos_and_eos(stored, True, stored.says("add_eos_token", False), False)  # early files deny BOS
    return byte_pair_tokenizer(stored, pre_tokenizer("gemma4")), around


def _llama(stored: StoredVocabulary) -> tuple[Tokenizer, VocabularySurroundings]:
    begins, ends = stored.says("add_bos_token", True), stored.says("add_eos_token", False)
    return sentencepiece.byte_pair_tokenizer_of_scores(stored), _bos_and_eos(stored, begins, ends, False)


def _t5(stored: StoredVocabulary) -> tuple[Tokenizer, VocabularySurroundings]:
    """Those of encoders surround a text as XLM-RoBERTa does."""
    of_encoder = stored.architecture not in sentencepiece.T5
    begins, ends = stored.says("add_bos_token", of_encoder), stored.says("add_eos_token", True)
    around = _bos_and_eos(stored, begins, ends, stored.says("add_sep_token", of_encoder))
    return sentencepiece.unigram_tokenizer(stored), around


def _bert(stored: StoredVocabulary) -> tuple[Tokenizer, VocabularySurroundings]:
    before = stored.token_of("cls", "bos") or word_pieces.CLS
    after = stored.token_of("seperator", "eos") or word_pieces.SEP  # the format's own spelling
    return word_pieces.word_piece_tokenizer(stored), VocabularySurroundings(before, after, second_type=1)


_KINDS: dict[str, Callable[[StoredVocabulary], tuple[Tokenizer, VocabularySurroundings]]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "gemma4": _gemma4,
    "bert": _bert,
    "t5": _t5,
    "whitespace": _whitespace,
}
_REFUSED = {
    "rwkv": "the longest match of RWKV models",
    "plamo2": "the likeliest division of PLaMo 2",
    "hybriddna": "words beside letters of DNA",
    "none": "the file has no vocabulary",
    "no_vocab": "the file has no vocabulary",
}


def _bos_and_eos(stored: StoredVocabulary, begins: bool, ends: bool, separated: bool) -> VocabularySurroundings:
    before = stored.token_of("bos", "cls") if begins else None
    after = stored.token_of("eos", "seperator") if ends else None
    return VocabularySurroundings(before, after, stored.token_of("seperator", "eos") if separated else None)


def _add_special(tokenizer: Tokenizer, stored: StoredVocabulary) -> None:
    tokens = stored.tokens
    control = {t for t, kind in zip(tokens, stored.types, strict=True) if kind in (CONTROL, UNKNOWN) and t}
    control |= {t for role in ("bos", "eos", "eot", "eom") if (t := stored.token_of(role))}
    control |= set(known_stop_tokens(VocabularyNames(tokenizer)))
    named = zip(tokens, stored.types, strict=True)
    user = [t for t, kind in named if kind == USER_DEFINED and t and t not in control]
    swallows = _swallows_space(stored.metadata)
    tokenizer.add_special_tokens([_added(t, special=True, rstrip=swallows(t)) for t in tokens if t in control])
    tokenizer.add_tokens([_added(t, special=False, rstrip=swallows(t)) for t in user])


def _added(token: str, *, special: bool, rstrip: bool) -> AddedToken:
    return AddedToken(token, special=special, normalized=False, rstrip=rstrip)


def _swallows_space(metadata: Mapping[str, Any]) -> Callable[[str], bool]:
    """Return whether a special token takes the white space behind it, which GGUF cannot say.

    In the SentencePiece vocabulary of Phi-3 all but three do.
    """
    name = str(metadata.get("general.name", "")).lower()
    of_phi3 = metadata.get("general.architecture") == "phi3" or _PHI3.search(name) is not None
    if metadata.get("tokenizer.ggml.model") != "llama" or not of_phi3:
        return lambda token: False
    return lambda token: token not in _KEEP_SPACE


def make_special(tokenizer: Tokenizer, names: Iterable[str]) -> None:
    """Make these tokens of the vocabulary special: a prompt has each as one token, and an answer's text does not show
    it.
    """
    present = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
    added = []
    for name in names:
        known = present.get(name)
        if tokenizer.token_to_id(name) is not None and not (known and known.special):
            added.append(_added(name, special=True, rstrip=bool(known and known.rstrip)))
    tokenizer.add_special_tokens(added)


def surround(tokenizer: Tokenizer, around: VocabularySurroundings) -> None:
    """Make `tokenizer` put these tokens around a text, or two, when special tokens are asked for."""
    named = dict.fromkeys(t for t in (around.before, around.after, around.between) if t)
    ids = [(t, tokenizer.token_to_id(t)) for t in named]
    if not ids:
        return
    first = [t for t in (around.before, "$A", around.after) if t]
    second = [f"{t}:{around.second_type}" for t in ("$B", around.after) if t]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=first, pair=[*first, *([around.between] if around.between else []), *second], special_tokens=ids
    )
