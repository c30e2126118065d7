"""Vocabularies stored in GGUF files, turned into the `tokenizers` library's models.

Three kinds matter for decoder models: `gpt2` (byte-level BPE: tokens and merges), `llama` (SentencePiece BPE: tokens
and scores, bytes as `<0x0A>`) and `gemma4` (BPE of tokens and merges over text as it is, `▁` for a space, bytes as
`<0x0A>`). SentencePiece merges the adjacent pair whose union scores best; as a list of merges that is every way to
split a token in two, ordered by the token's score.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from homenode.errors import CheckpointError, UnsupportedError, UserError
from homenode.model.formats.gguf_token_ids import token_id_of
from homenode.model.tokenizer.library import library_from_json
from homenode.model.tokenizer.pretokenizers import pre_tokenizer
from homenode.model.tokenizer.scored_merges import scored_merges
from homenode.model.tokenizer.stop_tokens import VocabularyNames, known_stop_tokens
from homenode.model.tokenizer.token_bytes import placeholder
from homenode.units import format_count

_CONTROL, _USER_DEFINED, _UNKNOWN = 3, 4, 2
_SPACE = "▁"
_PHI3 = re.compile(r"phi[-_ ]?3")
_KEEP_SPACE = ("<unk>", "<s>", "<|endoftext|>")


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
    if not isinstance(kind, str) or make is None:
        raise UnsupportedError(
            f"vocabulary kind {kind!r} (tokenizer.ggml.model) is not supported; known: gpt2 (byte-level BPE), llama (SentencePiece BPE), gemma4 (BPE of text)"
        )
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    try:
        tokenizer = make(metadata, tokens)
    except UserError:
        raise
    except Exception as error:  # the library raises bare Exception for vocabularies and merges that do not fit
        raise CheckpointError(f"the vocabulary in the file does not fit together: {error}") from error
    _add_special(tokenizer, tokens, metadata)
    _add_bos_and_eos(tokenizer, tokens, metadata, kind)
    return tokenizer


def _strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    values = metadata.get(key)
    if not isinstance(values, list) or not values or not all(isinstance(v, str) for v in values):
        raise CheckpointError(f"{key} must be a list of strings; found {type(values).__name__}", key=key)
    return values


def _vocabulary(tokens: Sequence[str]) -> dict[str, int]:
    """Ids by token; of equal tokens the first counts, the others get names nothing matches so that ids keep their
    places.
    """
    vocabulary: dict[str, int] = {}
    for index, token in enumerate(tokens):
        vocabulary[token if token not in vocabulary else placeholder(index, token)] = index
    return vocabulary


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str]) -> Tokenizer:
    cut = pre_tokenizer(str(metadata.get("tokenizer.ggml.pre") or "default"))
    vocabulary = _vocabulary(tokens)
    merges = _merges(metadata, vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=cut.whole_words))
    cuts = [pre_tokenizers.Split(Regex(e), "isolated") for e in cut.expressions]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _merges(metadata: Mapping[str, Any], vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """Those of tokens that there are."""
    merges = [_pair(m) for m in _strings(metadata, "tokenizer.ggml.merges")]
    return [(a, b) for a, b in merges if a in vocabulary and b in vocabulary and a + b in vocabulary]


def _of_text(metadata: Mapping[str, Any], tokens: Sequence[str]) -> Tokenizer:
    """Merges over text: only line ends cut it, and a run of them that is a token is taken whole."""
    vocabulary = _vocabulary(tokens)
    merges = _merges(metadata, vocabulary)
    unknown = _token(tokens, metadata, "unknown")
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True, ignore_merges=True
        )
    )
    tokenizer.normalizer = normalizers.Replace(" ", _SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n+"), "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def _pair(merge: str) -> tuple[str, str]:
    at = merge.find(" ", 1)
    if at < 0:
        raise CheckpointError(f"tokenizer.ggml.merges holds {merge!r}, which is no pair")
    return merge[:at], merge[at + 1 :]


def _sentencepiece(metadata: Mapping[str, Any], tokens: Sequence[str]) -> Tokenizer:
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise CheckpointError(
            f"tokenizer.ggml.scores must hold one number for each of {format_count(len(tokens), 'token')}"
        )
    vocabulary = _vocabulary(tokens)
    types = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    unknown = (
        next((t for t, kind in zip(tokens, types, strict=False) if kind == _UNKNOWN), None)
        or _token(tokens, metadata, "unknown")
        or tokens[0]
    )
    mergeable = {t: i for t, i in vocabulary.items() if i >= len(types) or types[i] == 1}
    merges = scored_merges(mergeable, scores)
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    steps: list[Any] = [normalizers.Prepend(_SPACE)] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    undo: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*undo, decoders.Strip(" ", 1, 0)] if prefix else undo)
    return tokenizer


_KINDS: dict[str, Callable[[Mapping[str, Any], Sequence[str]], Tokenizer]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
    "gemma4": _of_text,
}


def _token(tokens: Sequence[str], metadata: Mapping[str, Any], role: str) -> str | None:
    """The text of the token with a role (bos, eos, unknown...)."""
    index = token_id_of(metadata, role, len(tokens))
    return None if index is None else tokens[index]


def _add_special(tokenizer: Tokenizer, tokens: Sequence[str], metadata: Mapping[str, Any]) -> None:
    types = metadata.get("tokenizer.ggml.token_type") or []
    if not isinstance(types, list) or len(types) not in (0, len(tokens)):
        raise CheckpointError(
            f"tokenizer.ggml.token_type must hold one number for each of {format_count(len(tokens), 'token')}"
        )
    control = {t for t, kind in zip(tokens, types, strict=False) if kind in (_CONTROL, _UNKNOWN) and t}
    control |= {t for role in ("bos", "eos", "eot", "eom") if (t := _token(tokens, metadata, role))}
    control |= set(known_stop_tokens(VocabularyNames(tokenizer)))
    user = [t for t, kind in zip(tokens, types, strict=False) if kind == _USER_DEFINED and t and t not in control]
    swallows = _swallows_space(metadata)
    tokenizer.add_special_tokens([_added(t, special=True, rstrip=swallows(t)) for t in tokens if t in control])
    tokenizer.add_tokens([_added(t, special=False, rstrip=swallows(t)) for t in user])


def _added(token: str, *, special: bool, rstrip: bool) -> AddedToken:
    return AddedToken(token, special=special, normalized=False, rstrip=rstrip)


def _swallows_space(metadata: Mapping[str, Any]) -> Callable[[str], bool]:
    """Whether a special token takes the white space behind it, which GGUF cannot say.

    In the SentencePiece vocabulary of Phi-3 all but three do.
    """
    name = str(metadata.get("general.name", "")).lower()
    of_phi3 = metadata.get("general.architecture") == "phi3" or _PHI3.search(name) is not None
    if metadata.get("tokenizer.ggml.model") != "llama" or not of_phi3:
        return lambda token: False
    return lambda token: token not in _KEEP_SPACE


def _add_bos_and_eos(tokenizer: Tokenizer, tokens: Sequence[str], metadata: Mapping[str, Any], kind: str) -> None:
    pre = str(metadata.get("tokenizer.ggml.pre") or "default")
    usual = kind != "gpt2" or pre_tokenizer(pre).begins_with_bos
    begins = kind == "gemma4" or metadata.get("tokenizer.ggml.add_bos_token", usual)  # early gemma4 files deny it
    bos = _token(tokens, metadata, "bos") if begins else None
    eos = _token(tokens, metadata, "eos") if metadata.get("tokenizer.ggml.add_eos_token", False) else None
    surround(tokenizer, bos, eos)


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


def surround(tokenizer: Tokenizer, bos: str | None, eos: str | None) -> None:
    """Make `tokenizer` put `bos` before and `eos` after a text when special tokens are asked for."""
    ids = [(t, tokenizer.token_to_id(t)) for t in dict.fromkeys(t for t in (bos, eos) if t)]
    if ids:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[t for t in (bos, "$A", eos) if t], special_tokens=ids
        )
