"""Each cut divides words of every script as its published expressions say, written here once more for Python's own
`re`.
"""

from __future__ import annotations

import random
import re
import unicodedata
from functools import cache

import pytest
from tokenizers import Regex, pre_tokenizers

from homenode.errors import UnsupportedError
from homenode.model.tokenizer.pretokenizers import known_names, pre_tokenizer

ANY_CASE = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?[{L}]+| ?[{N}]+| ?[^\s{L}{N}]+|\s+(?!\S)|\s+"
LLAMA3 = ANY_CASE + r"|[^\r\n{L}{N}]?[{L}]+|[{N}]{1,3}| ?[^\s{L}{N}]+[\r\n]*" + SPACES
UPPER, LOWER = "[{Lu}{Lt}{Lm}{Lo}{M}]", "[{Ll}{Lm}{Lo}{M}]"
CASED = (
    rf"[^\r\n{{L}}{{N}}]?{UPPER}*{LOWER}+END|[^\r\n{{L}}{{N}}]?{UPPER}+{LOWER}*END|DIGITS| ?[^\s{{L}}{{N}}]+[\r\n/]*"
    + SPACES
)
HAN = "⺀-⺙⺛-⻳⼀-⿕々〇〡-〩〸-〻㐀-䶿一-\u9fff\uf900-\ufa6d\ufa70-\ufad9"  # the script, below U+20000
EAST_ASIAN = "[一-龥\u0800-一가-\ud7ff]+"
# By name; names that share a cut are in SAME.
CUTS = {
    "gpt-2": (GPT2,),
    "starcoder": ("[{N}]", GPT2),
    "falcon": (r"[{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"),
    "default": (r"[{P}\$\+<=>\^~\|]+", GPT2, "[{N}]+", "[0-9][0-9][0-9]"),
    "llama-bpe": (LLAMA3,),
    "qwen2": (LLAMA3.replace("{1,3}", ""),),
    "qwen35": (ANY_CASE + r"|[^\r\n{L}{N}]?[{L}{M}]+|[{N}]| ?[^\s{L}{M}{N}]+[\r\n]*" + SPACES,),
    "seed-coder": (ANY_CASE + r"|[^\r\n{L}{N}]?[{L}]+|[{N}]| ?[^\s{L}{N}\r\n]+" + SPACES,),
    "bailingmoe": (
        r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n{L}{N}]?[{L}]+|[{N}]| ?[^\s{L}{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    ),
    "minicpm5": ("[{N}]{1,3}", LLAMA3.replace("{1,3}", "+")),
    "bloom": (r" ?[^(\s|.,!?…。，、।۔،)]+",),
    "viking": (r" ?[^(\s|.,!?…。，、।۔،)]+", "[{N}]"),
    "gpt-4o": (CASED.replace("END", ANY_CASE + "?").replace("DIGITS", "[{N}]{1,3}"),),
    "tekken": (CASED.replace("END", "").replace("DIGITS", "[{N}]"),),
    "kimi-k2": (
        "[{Han}]+|"
        + CASED.replace(UPPER, f"(?:(?![{{Han}}]){UPPER})").replace(LOWER, f"(?:(?![{{Han}}]){LOWER})").replace(
            "END", ANY_CASE + "?"
        ).replace("DIGITS", "[{N}]{1,3}").replace("/", ""),
    ),
    "deepseek-v3": (
        "[{N}]{1,3}",
        "[一-龥\u3040-\u309f\u30a0-\u30ff]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n{L}{P}{S}]?[{L}{M}]+| ?[{P}{S}]+[\r\n]*""" + SPACES,
    ),
    "deepseek-coder": (r"[\r\n]", r"\s?[{L}]+", r"\s?[{P}]+", EAST_ASIAN, "[{N}]"),
}  # fmt: skip
SAME = {
    "gpt-2": "mpt olmo jais phi-2 trillion gigachat modern-bert granite-docling exaone4 a.x-4.0 mellum",
    "starcoder": "refact command-r smollm codeshell exaone minerva-7b smaug-coder mellum2",
    "llama-bpe": "llama3 llama-v3 llama4-text falcon3 falcon-h1 pixtral pixtral-bpe midm-2.0 lfm2 dbrx smaug-bpe chatglm-bpe glm4 glm5",
    "qwen2": "deepseek-r1-qwen stablelm2 megrez hunyuan kormo solar-open grok-2",
    "bailingmoe": "bailingmoe2 llada-moe",
    "bloom": "poro-chat gpt3-finnish",
    "gpt-4o": "llama4 o200k kanana2 talkie minimax-m2",
    "deepseek-v3": "deepseek3-v3 hunyuan-dense joyai-llm hy_v4",
}
# The names that say more than the cut, as the reference reader has it; all others say neither.
BOS_AND_WHOLE_WORDS = "llama-bpe llama3 llama-v3 llama4-text falcon3 falcon-h1 pixtral pixtral-bpe midm-2.0 lfm2 tekken"
WHOLE_WORDS = "glm4 glm5 minicpm5"


@cache
def settled_characters() -> dict[str, list[str]]:
    """Characters by the first word of their names, which mostly is the script. Only those that no version of Unicode
    moved to another category.
    """
    found: dict[str, list[str]] = {}
    for code in range(0x21, 0x20000):
        c = chr(code)
        category = unicodedata.category(c)
        if category[0] in "LMNPS" and unicodedata.ucd_3_2_0.category(c) == category:
            found.setdefault(unicodedata.name(c, "").split(" ")[0], []).append(c)
    return found


@cache
def members(*categories: str) -> str:
    """The inside of a character class: all characters of these categories."""
    if categories == ("Han",):
        return HAN
    runs: list[list[int]] = []
    for code in range(0x110000):
        category = unicodedata.category(chr(code))
        if category in categories or category[0] in categories:
            if runs and runs[-1][1] == code - 1:
                runs[-1][1] = code
            else:
                runs.append([code, code])
    return "".join(f"\\U{a:08x}-\\U{b:08x}" for a, b in runs)


@cache
def compiled(expression: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{([LNPSM][a-z]?|Han)\}", lambda m: members(m[1]), expression))


def cut_by(expressions: tuple[str, ...], text: str) -> list[str]:
    """Every match is a piece, and so is what is left between matches; each expression divides the pieces of the one
    before.
    """
    pieces = [text]
    for expression in expressions:
        divided = []
        for piece in pieces:
            at = 0
            for match in compiled(expression).finditer(piece):
                divided += [piece[at : match.start()], match[0]]
                at = match.end()
            divided.append(piece[at:])
        pieces = [piece for piece in divided if piece]
    return pieces


def cut_here(name: str, text: str) -> list[str]:
    splits = [pre_tokenizers.Split(Regex(e), "isolated") for e in pre_tokenizer(name).expressions]
    return [piece for piece, _ in pre_tokenizers.Sequence(splits).pre_tokenize_str(text)]


def texts(name: str) -> list[str]:
    """A text for every script: its own characters among spaces, digits, signs and Latin words."""
    rng = random.Random(name)
    between = [" ", "  ", "\n", "\r\n ", "a", "Zz", "7", "2345", "'s", "'LL", "!", "_x", "/", "\u3000"]
    return [
        "".join(rng.choice(characters) if rng.random() < 0.7 else rng.choice(between) for _ in range(30))
        for characters in settled_characters().values()
        for _ in range(2)
    ]


@pytest.mark.parametrize("name", CUTS)
def test_every_script_is_cut_as_the_expressions_say(name: str) -> None:
    for text in texts(name):
        assert cut_here(name, text) == cut_by(CUTS[name], text), text


def test_names_that_share_a_cut() -> None:
    for name, others in SAME.items():
        for other in others.split():
            assert pre_tokenizer(other).expressions == pre_tokenizer(name).expressions, other
    assert {*CUTS, *" ".join(SAME.values()).split(), "deepseek-llm"} == set(known_names())


def test_what_a_name_says_besides_the_cut() -> None:
    for name in known_names():
        found = pre_tokenizer(name)
        both = name in BOS_AND_WHOLE_WORDS.split()
        assert (found.begins_with_bos, found.whole_words) == (both, both or name in WHOLE_WORDS.split()), name


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("deepseek-v3", "한국어 모델 abc", ["한국어", " 모델", " abc"]),
        ("deepseek-v3", "ภาษาไทย १२३४ हिन्दी", ["ภาษาไทย", " ", "१२३", "४", " हिन्दी"]),
        ("deepseek-v3", "日本語とカナ", ["日本語とカナ"]),
        ("deepseek-coder", "한국어 모델", ["한국어", " ", "모델"]),
        ("deepseek-llm", "Ab ба, 12 中", ["Ab", " ба", ",", " ", "12", " ", "中"]),
        ("gpt-4o", "helloWorld don't", ["hello", "World", " don't"]),
        ("kimi-k2", "中文abc 中文。\n/", ["中文", "abc", " ", "中文", "。\n", "/"]),
        ("kimi-k2", "かな漢字カナ don't", ["かな", "漢字", "カナ", " don't"]),
    ],
)
def test_words_that_were_cut_wrongly_or_are_cut_by_no_other_rule(name: str, text: str, pieces: list[str]) -> None:
    assert cut_here(name, text) == pieces


def test_an_unknown_name_is_refused_by_that_name() -> None:
    with pytest.raises(UnsupportedError, match="klingon"):
        pre_tokenizer("klingon")
