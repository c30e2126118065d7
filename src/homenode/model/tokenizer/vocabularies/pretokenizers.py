"""The ways in which vocabularies with merges cut a text into words before merging, by the name GGUF gives each cut
(`tokenizer.ggml.pre`). A new one is a line.

A cut is a list of regular expressions applied one after the other: each divides what the one before left. The
expressions are the published ones of the tokenizers they are named after, but for those that look at a whole run of
digits again at each digit, which are written so that they look once. A name says more, where the file does not: what
the merges are over, whether a word that stands in the vocabulary is taken whole, and which tokens surround a text.
Names that share a cut need not agree in these.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

from homenode.errors import UnsupportedError

_log = logging.getLogger(__name__)


class Alphabet(enum.Enum):
    """The symbols that merges begin with."""

    BYTES = "bytes, each written as a letter"
    TEXT = "characters, ▁ for a space"
    WORDS = "characters of words; white space is left out"


@dataclass(frozen=True)
class PreTokenizer:
    """The meaning of a name. `expressions` in the order they are applied."""

    expressions: tuple[str, ...]
    whole_words: bool = False  # a word found in the vocabulary is one token, whatever the merges would make of it
    begins_with_bos: bool = False  # when the file does not say, and so the next one
    ends_with_eos: bool = False  # and two texts have SEP between them besides
    alphabet: Alphabet = Alphabet.BYTES


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
_UFAKZEKA = _QWEN2.removeprefix(_ANY_CASE + "|")
_LAGUNA = (r"[^\n]+|\n+", _QWEN2)
_EXAONE_MOE = (
    _ANY_CASE
    + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_JAIS2 = _LLAMA3.removesuffix(r"\s+(?!\S)|\s+") + "|".join(
    [*(rf"\s{{{count}}}(?!\S)" for count in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2")), r"\s"]
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
# Words that change from lower to upper case are cut there (the o200k family).
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+{end}|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*{end}|"
    r"{digits}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT4O = _CASED.replace("{end}", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?").replace("{digits}", r"\p{N}{1,3}")
_TEKKEN = _CASED.replace("{end}", "").replace("{digits}", r"\p{N}")
_KIMI_K2 = r"\p{Han}+|" + _GPT4O.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]").replace(r"[\r\n/]*", r"[\r\n]*")
_HAN_AND_KANA = "[一-龥぀-ゟ゠-ヿ]+"  # Han, Hiragana, Katakana
_V3_WORDS = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"""
    r""" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
_DEEPSEEK_V3 = (r"\p{N}{1,3}", _HAN_AND_KANA, _V3_WORDS)
_SPARK = (
    r"\p{N}{1,3}",
    _HAN_AND_KANA,
    _V3_WORDS.replace(r"[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+", r"[\p{P}\p{S}]+|[\r\n]"),
    r"\p{N}",
)
# Digits in threes counted from the right: one or two in front, found once for each run of digits.
_THREES_FROM_THE_RIGHT = r"(?<!\p{N})\p{N}{1,2}(?=(?:\p{N}{3})*+(?!\p{N}))|\p{N}{3}"
_AFMOE = (
    _THREES_FROM_THE_RIGHT,
    "[一-\u9fff㐀-\u4dbf\uf900-\ufaff\u3040-ゟ゠-ヿ\uff65-\uff9f\u2f00-\u2fdfเ-\u0e7f\u0e80-\u0effក-\u17ffက-႟ꩠ-ꩿꧠ-\ua9ff가-\ud7afᄀ-ᇿ]+",
    _V3_WORDS,
)
# The same where a word ends behind the digits; else they are left to the expression that follows. A run is looked at
# where it begins, and a match goes on where the one before has ended (\G).
_TINY_AYA = (r"(?<!\d)\d{1,3}(?=(?:\d{3})*+\b)|\G(?<=\d)\d{3}", _GPT4O)
# A cut before each three of them. What stands before the first three of a run, and numbers that are no decimal digits,
# stay with what comes before.
_UP_TO_THREES = r"(?:\D++(?:\d{1,2}(?=(?:\d{3})*+(?!\d)))?+)*+"
_SUPERBPE = (
    r"\p{N}+",
    rf"(?:(?<!\d)|(?<=\A\d|\D\d)|(?<=\A\d\d|\D\d\d))\d{{3}}(?=(?:\d{{3}})*+(?!\d)){_UP_TO_THREES}|"
    rf"\G(?<=\d)\d{{3}}{_UP_TO_THREES}",
)
_YOUTU = (
    "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，\u3001-\u303f\ufe30-\ufe4f]+|[ㄅ-ㄯ]+|[一-龥\u3040-ゟ゠-ヿ]+",
    _GPT4O.replace(r"\p{N}{1,3}", r"\p{N}"),
)
_CHAMELEON = (
    "<sentinel:[0-9]+>",
    "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
    r"[\t\n]|    |  ",
    r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]",
    _GPT2,
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
_TEXT = PreTokenizer((r"\n+",), whole_words=True, begins_with_bos=True, alphabet=Alphabet.TEXT)
_NAMED: dict[PreTokenizer, str] = {
    PreTokenizer(_DEFAULT): "default",
    PreTokenizer((_GPT2,)): (
        "gpt-2 mpt olmo jais phi-2 trillion gigachat modern-bert granite-docling exaone4 a.x-4.0 mellum "
        "jina-es jina-de jina-v2-es jina-v2-de"
    ),
    PreTokenizer((_GPT2,), begins_with_bos=True, ends_with_eos=True): "jina-v1-en jina-v2-code roberta-bpe",
    PreTokenizer(_FALCON): "falcon",
    PreTokenizer((r"\p{N}", _GPT2)): (
        "starcoder refact command-r smollm codeshell exaone minerva-7b smaug-coder mellum2"
    ),
    _LLAMA: ("llama-bpe llama3 llama-v3 llama4-text falcon3 falcon-h1 pixtral pixtral-bpe midm-2.0 lfm2 jina-v5-nano"),
    replace(_LLAMA, begins_with_bos=False): "glm4 glm5",
    PreTokenizer((_LLAMA3,)): "dbrx smaug-bpe chatglm-bpe",
    PreTokenizer((_JAIS2,)): "jais-2",
    PreTokenizer((_QWEN2,)): ("qwen2 deepseek-r1-qwen stablelm2 megrez hunyuan kormo solar-open grok-2 f2llmv2"),
    PreTokenizer((_QWEN35,)): "qwen35",
    PreTokenizer((_UFAKZEKA,)): "ufakzeka",
    PreTokenizer(_LAGUNA): "laguna",
    PreTokenizer((_EXAONE_MOE,)): "exaone-moe",
    PreTokenizer((_SEED_CODER,)): "seed-coder",
    PreTokenizer((_BAILING,)): "bailingmoe bailingmoe2 llada-moe",
    PreTokenizer(_MINICPM5, whole_words=True): "minicpm5",
    PreTokenizer((_BLOOM,)): "bloom poro-chat gpt3-finnish",
    PreTokenizer((_BLOOM, r"\p{N}")): "viking",
    PreTokenizer((_GPT4O,)): "gpt-4o llama4 o200k kanana2 talkie minimax-m2",
    PreTokenizer((_GPT4O,), whole_words=True): "granite-embed-multi-97m",
    PreTokenizer(_TINY_AYA): "tiny_aya cohere2moe",
    PreTokenizer(_YOUTU, whole_words=True): "youtu",
    PreTokenizer((_KIMI_K2,)): "kimi-k2",
    PreTokenizer((_TEKKEN,), whole_words=True, begins_with_bos=True): "tekken",
    PreTokenizer(_DEEPSEEK_V3): "deepseek-v3 deepseek3-v3 hunyuan-dense joyai-llm hy_v4",
    PreTokenizer(_SPARK): "spark2_5",
    PreTokenizer(_AFMOE): "afmoe",
    PreTokenizer(_DEEPSEEK_LLM): "deepseek-llm",
    PreTokenizer(_DEEPSEEK_CODER): "deepseek-coder",
    PreTokenizer(_SUPERBPE): "superbpe",
    PreTokenizer(_CHAMELEON, begins_with_bos=True): "chameleon",
    _TEXT: "gemma4 granite-embed-multi-311m",
    replace(_TEXT, whole_words=False, begins_with_bos=False): "sarvam-moe",
    PreTokenizer((), alphabet=Alphabet.WORDS): "whitespace",
}
_BY_NAME = {name: cut for cut, names in _NAMED.items() for name in names.split()}
# By how an unknown name, or else the architecture of the model, begins: the name whose meaning stands in for it. The
# longest beginning counts.
_FAMILIES: dict[str, str] = {
    "llama": "llama-bpe", "llama4": "llama4", "falcon": "falcon", "falcon3": "falcon3", "falcon-h1": "falcon-h1",
    "lfm": "lfm2", "qwen": "qwen2", "qwen35": "qwen35", "qwen36": "qwen35", "qwen38": "qwen35", "qwen4": "qwen35",
    "deepseek": "deepseek-v3", "kimi": "kimi-k2", "glm": "glm4", "chatglm": "chatglm-bpe", "gpt-oss": "gpt-4o",
    "gpt-4": "gpt-4o", "gpt2": "gpt-2", "gptneox": "gpt-2", "minimax": "minimax-m2", "cohere2moe": "cohere2moe",
    "command": "command-r", "cohere": "command-r", "exaone4": "exaone4", "exaone-moe": "exaone-moe",
    "hunyuan-moe": "hunyuan", "hunyuan-dense": "hunyuan-dense", "hy_v": "hy_v4", "bailingmoe": "bailingmoe2",
    "minicpm5": "minicpm5", "mistral": "tekken", "ministral": "tekken", "devstral": "tekken", "magistral": "tekken",
    "seed": "seed-coder", "olmo": "olmo", "starcoder": "starcoder", "bloom": "bloom", "mpt": "mpt", "phi2": "phi-2",
    "stablelm2": "stablelm2", "modern-bert": "modern-bert", "jina-v2": "jina-v2-de", "afmoe": "afmoe",
    "laguna": "laguna", "mellum": "mellum2", "solar": "solar-open",
}  # fmt: skip
_OF_MANY_FAMILIES = ("llama", "deepseek2")  # architectures whose models have vocabularies of any kind


def pre_tokenizer(name: str, architecture: str = "") -> PreTokenizer:
    """Return what a `tokenizer.ggml.pre` name means. A name that is not known, but of a family that is, means what is
    usual in that family, and a warning tells so: what it cuts otherwise becomes other tokens.

    Raises UnsupportedError for any other.
    """
    found = _BY_NAME.get(name)
    if found is not None:
        return found
    usual = _family(name) or (None if architecture in _OF_MANY_FAMILIES else _family(architecture))
    if usual is None:
        raise UnsupportedError(
            f"unknown pre-tokenizer {name!r} (tokenizer.ggml.pre); known: {', '.join(sorted(_BY_NAME))}. "
            "Give the model's Hugging Face folder (with tokenizer.json) by --tokenizer"
        )
    _log.warning(
        "pre-tokenizer %r (tokenizer.ggml.pre) is not known; texts are cut as by %r, and words that it cuts otherwise "
        "become other tokens. The model's Hugging Face folder (with tokenizer.json), given by --tokenizer, is exact",
        name,
        usual,
    )
    return _BY_NAME[usual]


def _family(name: str) -> str | None:
    """The known name that is usual where names begin as this one."""
    beginnings = [beginning for beginning in _FAMILIES if name.startswith(beginning)]
    return _FAMILIES[max(beginnings, key=len)] if beginnings else None


def known_names() -> Iterator[str]:
    """Every name there is."""
    return iter(_BY_NAME)
