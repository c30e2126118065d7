"""What a tokenizer must stand before it is used: texts of many scripts, its special tokens, long runs, and every
token of its vocabulary.

`examine` runs in the process of a trial (`trial_process`), where a crash, a hang or a wish for all memory harms nobody.
"""

from __future__ import annotations

from homenode.errors import CheckpointError
from homenode.model.tokenizer.tokenizer import Tokenizer
from homenode.units import format_count

_MOST_TOKENS_A_BYTE = 4  # of a text of many scripts: byte fallback gives one, taking letters apart some more
_SOME_TOKENS = 64  # that come with any text
_ENDS = 200  # tokens at each end of the vocabulary that are decoded one by one
_RUN = 2000  # characters
_PLAIN = "Hello, world! It's 12,345.67 degrees;\n\n\tdef f(x): return x ** 2  # (or not?)\r\n"
_SCRIPTS = (
    "Grüße, naïve café, Ελληνικά, Русский текст, עברית, العربية, हिन्दी, ไทย, 中文字符, ひらがな, 한국어, Việt, ქართული, አማርኛ, "
    "👩‍👩‍👧 🇳🇴 é ﷺ \u200b\u00a0\ufeff\ufffd\x00\x07\U0010ffff"
)
_RUNS = ("a", " ", "\n", "7", ".", "-", "é", "中", "ab ", "x1", "▁")


def examine(tokenizer: Tokenizer) -> None:
    """Raises CheckpointError for what a tokenizer gets wrong: it fails, is random, gives tokens it does not have, or
    too many.
    """
    for text in _texts(tokenizer):
        ids = tokenizer.encode(text)
        _check(tokenizer, text, ids)
        if tokenizer.encode(text) != ids:
            raise CheckpointError("it gives other tokens for the same text each time")
    for text in (_PLAIN, _SCRIPTS):
        _check(tokenizer, text, tokenizer.encode(text, add_special_tokens=False))
    _decode_all(tokenizer)


def _texts(tokenizer: Tokenizer) -> list[str]:
    letters = "".join(chr(code) for code in [*range(1, 0xD800, 53), *range(0xE000, 0x30000, 431)])
    special = [name for token in tokenizer.added_tokens[:_ENDS] if (name := tokenizer.token_text(token))]
    return ["", "a", _PLAIN, _SCRIPTS, letters, " ".join([*special, "a"]), *(run * (_RUN // len(run)) for run in _RUNS)]


def _check(tokenizer: Tokenizer, text: str, ids: list[int]) -> None:
    size = len(text.encode())
    if len(ids) > _SOME_TOKENS + _MOST_TOKENS_A_BYTE * size:
        raise CheckpointError(f"it makes {format_count(len(ids), 'token')} of a text of {size} bytes")
    for token in set(ids):
        if not tokenizer.has_token(token):
            raise CheckpointError(f"it gives the token id {token}, which is not in its vocabulary")
    for skip in (True, False):
        tokenizer.decode(ids, skip)


def _decode_all(tokenizer: Tokenizer) -> None:
    """Every token together, and some one by one and in a stream."""
    count = tokenizer.vocab_size
    tokenizer.decode(range(count), False)
    few = {*range(min(count, _ENDS)), *range(max(0, count - _ENDS), count), *tokenizer.added_tokens[:_ENDS]}
    for token in sorted(few):
        tokenizer.decode([token], False)
        tokenizer.token_text(token)
    stream = tokenizer.stream()
    stream.push(tokenizer.encode(_SCRIPTS))
    stream.flush()
