"""tekken.json, in which newer models of Mistral have their vocabulary: byte pair encoding over bytes, as a list of
tokens by rank, with the special tokens in front of them.

Source: the mistral-common project.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from homenode.model.formats.bounded_files import damaged, quoted
from homenode.model.formats.fields import Fields
from homenode.model.tokenizer.vocabularies.byte_pairs import byte_pair_tokenizer
from homenode.model.tokenizer.vocabularies.gguf_vocab import VocabularySurroundings, make_special, surround
from homenode.model.tokenizer.vocabularies.library import named_faults
from homenode.model.tokenizer.vocabularies.pretokenizers import PreTokenizer
from homenode.model.tokenizer.vocabularies.scored_merges import scored_merges
from homenode.model.tokenizer.vocabularies.stop_tokens import token_text
from homenode.model.tokenizer.vocabularies.stored_vocabulary import StoredVocabulary
from homenode.model.tokenizer.vocabularies.token_bytes import byte_letters

# The special tokens of files that list none, as the first did.
_FIRST = (
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS] "
    "[IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]"
).split()
_MOST_TOKENS = 2**21  # more than any vocabulary has
_LETTERS = {byte: letter for letter, byte in byte_letters().items()}


def tekken_tokenizer(path: Path, content: dict[str, Any]) -> Tokenizer:
    """The tokenizer of a tekken.json with this content, which puts `<s>` in front of texts.

    CheckpointError for what is missing or cannot be.
    """
    config = Fields(path, content).table("config")
    pattern = config.text("pattern") if config is not None else ""
    if config is None or not pattern:
        raise damaged(path, "config.pattern", seen="nothing", wanted="how texts are cut, as a regular expression")
    names = _special_tokens(path, content.get("special_tokens"))
    special = config.integer("default_num_special_tokens", len(names), minimum=len(names), maximum=_MOST_TOKENS)
    names += [f"<SPECIAL_{index}>" for index in range(len(names), special)]
    listed = content.get("vocab")
    if not isinstance(listed, list) or not listed or len(listed) > _MOST_TOKENS:
        raise damaged(path, "vocab", seen=quoted(listed), wanted=f"a list of 1 to {_MOST_TOKENS} tokens")
    most = special + len(listed)
    size = config.integer("default_vocab_size", most, minimum=special + 1, maximum=most)
    words = [_word(path, rank, token) for rank, token in enumerate(listed[: size - special])]
    merges = _merges(names, words)
    if len(set(words)) < len(words) or not merges:
        seen = "a token twice" if merges else "no token that two others make up"
        raise damaged(path, "vocab", seen=seen, wanted="tokens of byte pair encoding, every token once")
    stored = StoredVocabulary({"tokenizer.ggml.tokens": [*names, *words], "tokenizer.ggml.merges": merges})
    with named_faults(f"{path} is not a tokenizer"):
        tokenizer = byte_pair_tokenizer(stored, PreTokenizer((pattern,), whole_words=True))
        make_special(tokenizer, names)
        surround(tokenizer, VocabularySurroundings(before="<s>" if "<s>" in names else None))
    return tokenizer


def _special_tokens(path: Path, listed: Any) -> list[str]:
    """Their names, in the order of their ranks, which are ids from 0 on."""
    if listed is None:
        return list(_FIRST)
    ranked: dict[int, str] = {}
    for token in listed if isinstance(listed, list) else [listed]:
        told = token if isinstance(token, dict) else {}
        rank, name = told.get("rank"), token_text(told.get("token_str"))
        if type(rank) is not int or name is None or rank in ranked:
            wanted = "a list of tokens, each with a token_str and a rank of its own"
            raise damaged(path, "special_tokens", seen=quoted(token), wanted=wanted)
        ranked[rank] = name
    if sorted(ranked) != list(range(len(ranked))) or len(set(ranked.values())) < len(ranked):
        wanted = "different names, with all ranks from 0 on"
        raise damaged(path, "special_tokens", seen=f"{len(ranked)} that are not that", wanted=wanted)
    return [ranked[rank] for rank in range(len(ranked))]


def _word(path: Path, rank: int, token: Any) -> str:
    """A token as byte-level vocabularies write it, a letter for each byte."""
    try:
        data = base64.b64decode(token["token_bytes"], validate=True)
        if not data or token.get("rank", rank) != rank:
            raise ValueError
    except (AttributeError, KeyError, TypeError, ValueError, binascii.Error):
        wanted = f"token_bytes in base64, and rank {rank}"
        raise damaged(path, f"vocab[{rank}]", seen=quoted(token), wanted=wanted) from None
    return data.decode("latin-1").translate(_LETTERS)


def _merges(names: list[str], words: list[str]) -> list[str]:
    """Every way to put a token together of two others, that of lower rank first."""
    taken = set(names)
    vocabulary = {word: rank for rank, word in enumerate(words) if word not in taken}
    return [f"{first} {second}" for first, second in scored_merges(vocabulary, range(0, -len(words), -1))]
