"""Each cut divides words of every script as its published expressions say, written here once more for Python's own
`re`.
"""

from __future__ import annotations

import logging
import re
import time
import unicodedata
from collections.abc import Callable
from functools import cache

import pytest
from tokenizers import Regex, pre_tokenizers

from homenode.errors import UnsupportedError
from homenode.model.tokenizer.vocabularies.pretokenizers import _FAMILIES, Alphabet, known_names, pre_tokenizer
from tests.scripts import texts_of_all_scripts

ANY_CASE = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?[{L}]+| ?[{N}]+| ?[^\s{L}{N}]+|\s+(?!\S)|\s+"
LLAMA3 = ANY_CASE + r"|[^\r\n{L}{N}]?[{L}]+|[{N}]{1,3}| ?[^\s{L}{N}]+[\r\n]*" + SPACES
UPPER, LOWER = "[{Lu}{Lt}{Lm}{Lo}{M}]", "[{Ll}{Lm}{Lo}{M}]"
CASED = (
    rf"[^\r\n{{L}}{{N}}]?{UPPER}*{LOWER}+END|[^\r\n{{L}}{{N}}]?{UPPER}+{LOWER}*END|DIGITS| ?[^\s{{L}}{{N}}]+[\r\n/]*"
    + SPACES
)
# What ends no word: of alphabetic characters also those that are numbers or signs by category.
IN_WORD = "[\u00b2\u00b3\u00b9\u00bc-\u00be{L}{M}{Nd}{Nl}{Pc}\u24b6-\u24e9\U0001f130-\U0001f149\U0001f150-\U0001f169\U0001f170-\U0001f189]"
BEFORE_THREES = "(?=(?:[{N}]{3})*(?![{N}]))"
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
        (
            r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n{L}{N}]?[{L}]+|[{N}]| ?[^\s{L}{N}]+[\r\n]*|\s*[\r\n"
            r"]|\s+(?!\S)|\s+"
        ),
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
    "spark2_5": (
        "[{N}]{1,3}",
        "[一-龥\u3040-\u309f\u30a0-\u30ff]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n{L}{P}{S}]?[{L}{M}]+| ?[{P}{S}]+|[\r\n]|\s+(?!\S)|\s+""",
        "[{N}]",
    ),
    "afmoe": (
        "[{N}]{1,3}" + BEFORE_THREES,
        "[一-\u9fff㐀-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0effក-\u17ffက-\u109f"
        "\uaa60-\uaa7f\ua9e0-\ua9ff가-\ud7af\u1100-\u11ff]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n{L}{P}{S}]?[{L}{M}]+| ?[{P}{S}]+[\r\n]*""" + SPACES,
    ),
    "jais-2": (
        LLAMA3.removesuffix(SPACES) + r"|\s*[\r\n]+"
        + "".join(rf"|\s{{{n}}}(?!\S)" for n in "512 256 128 64 32 16 8 4 1,2".split()) + r"|\s{1}",
    ),
    "ufakzeka": (r"[^\r\n{L}{N}]?[{L}]+|[{N}]| ?[^\s{L}{N}]+[\r\n]*" + SPACES,),
    "laguna": (r"[^\n]+|[\n]+", LLAMA3.replace("{1,3}", "")),
    "exaone-moe": (
        ANY_CASE + (
            r"|[^\r\n{L}{N}]?(?:[{L}][{M}]*(?: [{L}][{M}]*)*)+|[{N}]| ?[^\s{L}{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|"
            r"\s+"
        ),
    ),
    "tiny_aya": (
        rf"[{{Nd}}]{{1,3}}(?=(?:[{{Nd}}]{{3}})*(?<=[{{Nd}}])(?!{IN_WORD}))",
        CASED.replace("END", ANY_CASE + "?").replace("DIGITS", "[{N}]{1,3}"),
    ),
    "superbpe": ("[{N}]+", "(?=([{Nd}]{3})+(?![{Nd}]))"),
    "youtu": (
        "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，\u3001-\u303f\ufe30-\ufe4f]+|[ㄅ-ㄯ]+|[一-龥\u3040-\u309f\u30a0-\u30ff]+",
        CASED.replace("END", ANY_CASE + "?").replace("DIGITS", "[{N}]"),
    ),
    "chameleon": (
        "<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", r"\t|\n|    |  ", "[{N}]", r"[{P}!-/:-@\[-`\{-~]", GPT2,
    ),
    "gemma4": (r"\n+",),
    "whitespace": (),
    "deepseek-coder": (r"[\r\n]", r"\s?[{L}]+", r"\s?[{P}]+", EAST_ASIAN, "[{N}]"),
}  # fmt: skip
SAME = {
    "gpt-2": "mpt olmo jais phi-2 trillion gigachat modern-bert granite-docling exaone4 a.x-4.0 mellum jina-es jina-de "
    "jina-v2-es jina-v2-de "
    "jina-v1-en jina-v2-code roberta-bpe",
    "starcoder": "refact command-r smollm codeshell exaone minerva-7b smaug-coder mellum2",
    "llama-bpe": (
        "llama3 llama-v3 llama4-text falcon3 falcon-h1 pixtral pixtral-bpe midm-2.0 lfm2 jina-v5-nano dbrx "
        "smaug-bpe chatglm-bpe glm4 glm5"
    ),
    "qwen2": "deepseek-r1-qwen stablelm2 megrez hunyuan kormo solar-open grok-2 f2llmv2",
    "bailingmoe": "bailingmoe2 llada-moe",
    "bloom": "poro-chat gpt3-finnish",
    "gpt-4o": "llama4 o200k kanana2 talkie minimax-m2 granite-embed-multi-97m",
    "tiny_aya": "cohere2moe",
    "gemma4": "granite-embed-multi-311m sarvam-moe",
    "deepseek-v3": "deepseek3-v3 hunyuan-dense joyai-llm hy_v4",
}
# The names that say more than the cut, as the reference reader has it; all others say neither.
BOS_AND_WHOLE_WORDS = (
    "llama-bpe llama3 llama-v3 llama4-text falcon3 falcon-h1 pixtral pixtral-bpe midm-2.0 lfm2 jina-v5-nano "
    "tekken gemma4 granite-embed-multi-311m"
)
WHOLE_WORDS = "glm4 glm5 minicpm5 granite-embed-multi-97m youtu"
BOS = "chameleon"
BOS_AND_EOS = "jina-v1-en jina-v2-code roberta-bpe"
OVER_TEXT = "gemma4 granite-embed-multi-311m sarvam-moe"


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


@cache
def splits(name: str) -> pre_tokenizers.Sequence:
    """Compiled once: the classes of characters are long."""
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(each), "isolated") for each in pre_tokenizer(name).expressions]
    )


def cut_here(name: str, text: str) -> list[str]:
    return [piece for piece, _ in splits(name).pre_tokenize_str(text)]


@pytest.mark.parametrize("name", CUTS)
def test_every_script_is_cut_as_the_expressions_say(name: str) -> None:
    for text in texts_of_all_scripts(name):
        assert cut_here(name, text) == cut_by(CUTS[name], text), text


def test_names_that_share_a_cut() -> None:
    for name, others in SAME.items():
        for other in others.split():
            assert pre_tokenizer(other).expressions == pre_tokenizer(name).expressions, other
    assert {*CUTS, *" ".join(SAME.values()).split(), "deepseek-llm"} == set(known_names())


def test_what_a_name_says_besides_the_cut() -> None:
    for name in known_names():
        found = pre_tokenizer(name)
        both, ends = name in BOS_AND_WHOLE_WORDS.split(), name in BOS_AND_EOS.split()
        assert found.whole_words == (both or name in WHOLE_WORDS.split()), name
        assert found.begins_with_bos == (both or ends or name in BOS.split()), name
        assert found.ends_with_eos == ends, name
        text = Alphabet.WORDS if name == "whitespace" else Alphabet.BYTES
        assert found.alphabet is (Alphabet.TEXT if name in OVER_TEXT.split() else text), name


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("deepseek-v3", "한국어 모델 abc", ["한국어", " 모델", " abc"]),
        ("deepseek-v3", "ภาษาไทย १२३४ हिन्दी", ["ภาษาไทย", " ", "१२३", "४", " हिन्दी"]),
        ("deepseek-v3", "日本語とカナ", ["日本語とカナ"]),
        ("deepseek-coder", "한국어 모델", ["한국어", " ", "모델"]),
        ("deepseek-llm", "Ab ба, 12 中", ["Ab", " ба", ",", " ", "12", " ", "中"]),
        ("afmoe", "1234567 12 123", ["1", "234", "567", " ", "12", " ", "123"]),
        ("tiny_aya", "1234567 1234x", ["1", "234", "567", " ", "123", "4", "x"]),
        ("superbpe", "a 1234 b", ["a ", "1", "234", " b"]),
        ("exaone-moe", "one two three, four", ["one two three", ",", " four"]),
        ("gpt-4o", "helloWorld don't", ["hello", "World", " don't"]),
        ("kimi-k2", "中文abc 中文。\n/", ["中文", "abc", " ", "中文", "。\n", "/"]),
        ("kimi-k2", "かな漢字カナ don't", ["かな", "漢字", "カナ", " don't"]),
    ],
)
def test_words_that_were_cut_wrongly_or_are_cut_by_no_other_rule(name: str, text: str, pieces: list[str]) -> None:
    assert cut_here(name, text) == pieces


@pytest.mark.parametrize("architecture", ["", "llama", "deepseek2", "klingon"])
def test_an_unknown_name_is_refused_by_that_name(architecture: str) -> None:
    with pytest.raises(UnsupportedError, match="unknown pre-tokenizer 'klingon'"):
        pre_tokenizer("klingon", architecture)


@pytest.mark.parametrize(
    ("name", "architecture", "usual"),
    [
        ("qwen3-next", "", "qwen2"),
        ("qwen36-vl", "llama", "qwen35"),  # the longest beginning
        ("llama5", "llama", "llama-bpe"),
        ("deepseek-v5", "deepseek2", "deepseek-v3"),
        ("klingon", "qwen35moe", "qwen35"),
        ("klingon", "gpt-oss", "gpt-4o"),
        ("falcon-h2", "falcon-h1", "falcon"),
    ],
)
def test_an_unknown_name_of_a_known_family_is_cut_as_usual_there(
    name: str, architecture: str, usual: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert pre_tokenizer(name, architecture) == pre_tokenizer(usual)
    assert f"pre-tokenizer '{name}'" in caplog.text and f"'{usual}'" in caplog.text and "--tokenizer" in caplog.text


def test_every_family_stands_for_a_known_name() -> None:
    assert set(_FAMILIES.values()) <= set(known_names())


@pytest.mark.parametrize("name", ["afmoe", "tiny_aya", "superbpe"])
def test_a_long_run_of_digits_takes_no_long_time(name: str) -> None:
    begin = time.process_time()
    for run in ("7" * 20_000, "7" * 20_001 + "x", "²" + "7" * 20_002):
        assert "".join(cut_here(name, run)) == run
    assert time.process_time() - begin < 2


def of_library(*steps: pre_tokenizers.PreTokenizer) -> Callable[[str], list[str]]:
    """What these steps of the library, as the original tokenizer lists them, cut a text into."""
    whole = pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return lambda text: [text[begin:end] for _, (begin, end) in whole.pre_tokenize_str(text)]


def of_expressions(*expressions: str) -> Callable[[str], list[str]]:
    """What the library cuts by the original's own expressions, which look at a run of digits again at each of them."""
    whole = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(each), "isolated") for each in expressions])
    return lambda text: [piece for piece, _ in whole.pre_tokenize_str(text)]


def of_expression(expression: str) -> Callable[[str], list[str]]:
    pattern = pytest.importorskip("regex", reason="the original is an expression for this module").compile(expression)
    return lambda text: [match[0] for match in pattern.finditer(text)]


def of_tiktoken(name: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    public = pytest.importorskip("tiktoken_ext.openai_public", reason="the original is in tiktoken")
    monkeypatch.setattr(public, "load_tiktoken_bpe", lambda *_, **__: {})
    return of_expression(getattr(public, name)()["pat_str"])


def of_transformers(module: str) -> Callable[[str], list[str]]:
    found = pytest.importorskip(f"transformers.models.{module}", reason="the original is in transformers")
    return of_expression(found.PRETOKENIZE_REGEX)


ORIGINALS: dict[str, Callable[[pytest.MonkeyPatch], Callable[[str], list[str]]]] = {
    "gpt-2": lambda _: of_library(),
    "command-r": lambda _: of_library(pre_tokenizers.Digits(individual_digits=True)),
    "qwen2": lambda _: of_transformers("qwen2.tokenization_qwen2"),
    "qwen35": lambda _: of_transformers("qwen3_5.tokenization_qwen3_5"),
    "gpt-4o": lambda monkeypatch: of_tiktoken("o200k_base", monkeypatch),
    "afmoe": lambda _: of_expressions(r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", *pre_tokenizer("afmoe").expressions[1:]),
    "tiny_aya": lambda _: of_expressions(r"\d{1,3}(?=(?:\d{3})*\b)", *pre_tokenizer("gpt-4o").expressions),
    "superbpe": lambda _: of_expressions(r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    "phi-2": lambda monkeypatch: of_tiktoken("r50k_base", monkeypatch),
}


@pytest.mark.parametrize("name", ORIGINALS)
def test_every_script_is_cut_as_the_original_cuts_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = ORIGINALS[name](monkeypatch)
    for text in (
        *texts_of_all_scripts(name),
        *texts_of_all_scripts(name, ("7", "2345", "78", "²", "٣", "_", " ", "x")),
    ):
        assert cut_here(name, text) == original(text), text
