"""How byte-level BPE vocabularies cut text into words before merging, by the name GGUF gives each cut
(`tokenizer.ggml.pre`).

A cut is a list of regular expressions applied one after the other: each divides what the one before left. The
expressions are the published ones of the tokenizers they are named after. A name says two things more, where the file
does not: whether a word that stands in the vocabulary is taken whole, and whether a text begins with the BOS token.
Names that share a cut need not agree in these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from homenode.errors import UnsupportedError


@dataclass(frozen=True)
class PreTokenizer:
    """What a name means. `expressions` in the order they are applied."""

    expressions: tuple[str, ...]
    whole_words: bool = False  # a word found in the vocabulary is one token, whatever the merges would make of it
    begins_with_bos: bool = False  # when the file does not say


_CONTRACTIONS = r"'s|'t|'re|'ve|'m|'ll|'d"
_ANY_CASE = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_GPT2 = _CONTRACTIONS + r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|`]+"
_LETTERS_THEN = r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _ANY_CASE + _LETTERS_THEN + r"\p{N}{1,3}" + _REST
_QWEN2 = _ANY_CASE + _LETTERS_THEN + r"\p{N}" + _REST
_QWEN35 = _ANY_CASE + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SEED_CODER = _ANY_CASE + _LETTERS_THEN + r"\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
_BAILING = r"'(?i:[sdmt]|ll|ve|re)" + _LETTERS_THEN + r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_MINICPM5 = (r"\p{N}{1,3}", _ANY_CASE + _LETTERS_THEN + r"\p{N}+" + _REST)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
# Words that change from lower to upper case are cut there (the o200k family).
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+{end}|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*{end}|{digits}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT4O = _CASED.replace("{end}", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?").replace("{digits}", r"\p{N}{1,3}")
_TEKKEN = _CASED.replace("{end}", "").replace("{digits}", r"\p{N}")
_KIMI_K2 = r"\p{Han}+|" + _GPT4O.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]").replace(r"[\r\n/]*", r"[\r\n]*")
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",  # Han, Hiragana, Katakana
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
)
_EAST_ASIAN = "[一-龥ࠀ-一가-퟿]+"  # as the elder DeepSeek models write it: from U+0800 on, so many other scripts as well
_CASED_LETTERS = (  # as the first DeepSeek models list them; the small letters of Armenian are not among them
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕ"
    "ἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳ"
    "Ꙁ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_CASED_LETTERS}]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    _EAST_ASIAN,
    r"\p{N}+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIAN, r"\p{N}")
_DEFAULT = (_PUNCTUATION.replace("`", ""), _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
_FALCON = (_PUNCTUATION, _GPT2, r"[0-9][0-9][0-9]")

_LLAMA = PreTokenizer((_LLAMA3,), whole_words=True, begins_with_bos=True)
_NAMED: dict[PreTokenizer, tuple[str, ...]] = {
    PreTokenizer(_DEFAULT): ("default",),
    PreTokenizer((_GPT2,)): (
        "gpt-2", "mpt", "olmo", "jais", "phi-2", "trillion", "gigachat", "modern-bert", "granite-docling", "exaone4", "a.x-4.0", "mellum",
    ),
    PreTokenizer(_FALCON): ("falcon",),
    PreTokenizer((r"\p{N}", _GPT2)): (
        "starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "smaug-coder", "mellum2",
    ),
    _LLAMA: (
        "llama-bpe", "llama3", "llama-v3", "llama4-text", "falcon3", "falcon-h1", "pixtral", "pixtral-bpe", "midm-2.0", "lfm2",
    ),
    PreTokenizer((_LLAMA3,), whole_words=True): ("glm4", "glm5"),
    PreTokenizer((_LLAMA3,)): ("dbrx", "smaug-bpe", "chatglm-bpe"),
    PreTokenizer((_QWEN2,)): (
        "qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan", "kormo", "solar-open", "grok-2",
    ),
    PreTokenizer((_QWEN35,)): ("qwen35",),
    PreTokenizer((_SEED_CODER,)): ("seed-coder",),
    PreTokenizer((_BAILING,)): ("bailingmoe", "bailingmoe2", "llada-moe"),
    PreTokenizer(_MINICPM5, whole_words=True): ("minicpm5",),
    PreTokenizer((_BLOOM,)): ("bloom", "poro-chat", "gpt3-finnish"),
    PreTokenizer((_BLOOM, r"\p{N}")): ("viking",),
    PreTokenizer((_GPT4O,)): ("gpt-4o", "llama4", "o200k", "kanana2", "talkie", "minimax-m2"),
    PreTokenizer((_KIMI_K2,)): ("kimi-k2",),
    PreTokenizer((_TEKKEN,), whole_words=True, begins_with_bos=True): ("tekken",),
    PreTokenizer(_DEEPSEEK_V3): ("deepseek-v3", "deepseek3-v3", "hunyuan-dense", "joyai-llm", "hy_v4"),
    PreTokenizer(_DEEPSEEK_LLM): ("deepseek-llm",),
    PreTokenizer(_DEEPSEEK_CODER): ("deepseek-coder",),
}  # fmt: skip
_BY_NAME = {name: cut for cut, names in _NAMED.items() for name in names}


def pre_tokenizer(name: str) -> PreTokenizer:
    """What a `tokenizer.ggml.pre` name means. Raises UnsupportedError for an unknown one: guessing would give wrong
    tokens silently.
    """
    found = _BY_NAME.get(name)
    if found is None:
        raise UnsupportedError(
            f"unknown pre-tokenizer {name!r} (tokenizer.ggml.pre); known: {', '.join(sorted(_BY_NAME))}. Give the model's Hugging Face folder "
            "(with tokenizer.json) by --tokenizer"
        )
    return found


def known_names() -> Iterator[str]:
    """Every name there is."""
    return iter(_BY_NAME)
