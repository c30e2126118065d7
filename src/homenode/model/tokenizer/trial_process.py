"""The process of a tokenizer's trial: `python -m homenode.model.tokenizer.trial_process FD PATH MEMORY SECONDS`.

It loads the tokenizer of the model at PATH as the program itself would, uses it on samples, and says over the socket
FD that all is well and how many bytes it has read of the file with the vocabulary, {"read": BYTES}, or what is wrong,
{"failure": KIND OF ERROR, "message": TEXT}. MEMORY is the address space it may use, SECONDS its processor time.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

from homenode.errors import CheckpointError, UserError
from homenode.model.checkpoint.vocabulary_file import vocabulary_file
from homenode.model.files_read import recorded_files
from homenode.model.sandbox.frames import FrameStream, encode
from homenode.model.sandbox.limits import allow_cpu, confine
from homenode.model.tokenizer.loader import load_untried
from homenode.model.tokenizer.tokenizer import Tokenizer
from homenode.model.tokenizer.vocabularies.library import named_faults
from homenode.units import format_count

# An engine loads its weights meanwhile, with as many threads as there are CPUs. At 10 the trial got a fiftieth of a CPU
# beside five other programs, and came near to its deadline.
_NICE = 5
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


def try_tokenizer(path: Path) -> dict[str, Any]:
    """The answer of a trial of the model at `path`."""
    file = vocabulary_file(path)
    try:
        with named_faults(f"{file} is not a usable tokenizer"), recorded_files() as read:
            tokenizer = load_untried(path)
        try:
            examine(tokenizer)
        except UserError as error:
            return _failure("CheckpointError", f"{file} is not a usable tokenizer: {error.message}")
    except UserError as error:
        named = error.message if file.name in error.message else f"{file}: {error.message}"
        return _failure(type(error).__name__, named)
    return {"read": read.lengths.get(file, 0)}


def _failure(kind: str, message: str) -> dict[str, Any]:
    return {"failure": kind, "message": message}


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


def main(arguments: list[str]) -> int:
    """Try one tokenizer and say what came of it; the exit code."""
    os.nice(_NICE)
    confine(int(arguments[2]))
    allow_cpu(float(arguments[3]))
    frames = FrameStream(socket.socket(fileno=int(arguments[0])))
    frames.send(encode(try_tokenizer(Path(arguments[1]))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
