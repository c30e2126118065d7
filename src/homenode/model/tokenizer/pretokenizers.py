"""How byte-level BPE vocabularies cut text into words before merging, by the name GGUF gives each cut (`tokenizer.ggml.pre`).

A cut is a list of regular expressions applied one after the other: each divides what the one before left. The expressions are the published
ones of the tokenizers they are named after; several names share one.
"""

from __future__ import annotations

from homenode.errors import UnsupportedError

_CONTRACTIONS = r"'s|'t|'re|'ve|'m|'ll|'d"
_ANY_CASE = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_GPT2 = _CONTRACTIONS + r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|`]+"
_LETTERS_THEN = r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _ANY_CASE + _LETTERS_THEN + r"\p{N}{1,3}" + _REST
_QWEN2 = _ANY_CASE + _LETTERS_THEN + r"\p{N}" + _REST
# Words that change from lower to upper case are cut there (the o200k family).
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+{end}|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*{end}|{digits}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT4O = _CASED.replace("{end}", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?").replace("{digits}", r"\p{N}{1,3}")
_TEKKEN = _CASED.replace("{end}", "").replace("{digits}", r"\p{N}")
_CJK = "一-龥ࠀ-一가-퟿"
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    f"[{_CJK}]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", f"[{_CJK}]+", r"\p{N}")

_CUTS: dict[str, tuple[str, ...]] = {
    "default": (_PUNCTUATION.replace("`", ""), _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "gpt-2": (_GPT2,),
    "falcon": (_PUNCTUATION, _GPT2, r"[0-9][0-9][0-9]"),
    "starcoder": (r"\p{N}", _GPT2),
    "llama-bpe": (_LLAMA3,),
    "qwen2": (_QWEN2,),
    "gpt-4o": (_GPT4O,),
    "tekken": (_TEKKEN,),
    "deepseek-v3": _DEEPSEEK_V3,
    "deepseek-coder": _DEEPSEEK_CODER,
}
_SAME = {
    "gpt-2": ("mpt", "olmo", "jais", "phi-2", "trillion", "gigachat", "modern-bert"),
    "starcoder": ("refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "smaug-coder"),
    "llama-bpe": (
        "llama3",
        "llama-v3",
        "llama4-text",
        "smaug-bpe",
        "falcon3",
        "dbrx",
        "pixtral-bpe",
        "chatglm-bpe",
        "glm4",
        "falcon-h1",
    ),
    "qwen2": ("deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan"),
    "gpt-4o": ("llama4", "o200k"),
    "deepseek-v3": ("deepseek3-v3", "hunyuan-dense"),
}
_ALIASES = {name: family for family, names in _SAME.items() for name in names}

# Vocabularies that take a whole word found in the vocabulary as it is, before any merge.
WHOLE_WORDS = frozenset({"llama-bpe", "tekken"})
# Vocabularies whose text begins with the BOS token unless the file says otherwise.
BEGIN_WITH_BOS = frozenset({"llama-bpe", "tekken", "deepseek-v3"})


def family(name: str) -> str:
    """The family a `tokenizer.ggml.pre` name belongs to. Raises UnsupportedError for an unknown one: guessing would give wrong tokens silently."""
    found = name if name in _CUTS else _ALIASES.get(name)
    if found is None:
        known = ", ".join(sorted([*_CUTS, *_ALIASES]))
        raise UnsupportedError(
            f"unknown pre-tokenizer {name!r} (tokenizer.ggml.pre); known: {known}. Give the model's Hugging Face folder (with tokenizer.json) by --tokenizer"
        )
    return found


def expressions(name: str) -> tuple[str, ...]:
    """The regular expressions of a cut, in the order they are applied."""
    return _CUTS[family(name)]
