"""Token ids to text as they arrive, never half a character: the same text as that of the whole sequence, however it is
cut.

A whole text is decoded by a stream as well, so the two cannot differ.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Collection, Iterable, Sequence

from homenode.model.tokenizer.vocabularies.token_bytes import ByteRule, TokenBytes

_REPLACEMENT = "�"
_ESCAPED = re.compile("[\udc80-\udcff]")  # what Python's surrogateescape makes of a byte that is part of no character
_LONGEST_CHARACTER = 4  # bytes of a UTF-8 character, so the most tokens a valid one can be spread over


class ByteStream:
    """Decodes the bytes of one sequence's tokens.

    `context` are ids that stand before the first pushed one and whose text has been given out. A character that begins
    there and ends here comes out whole; one that is never finished belongs to the context.
    """

    def __init__(
        self, table: TokenBytes, rule: ByteRule, context: Sequence[int] = (), *, skipped: Collection[int] = ()
    ) -> None:
        """`skipped`: the tokens that have no text."""
        self._table, self._rule, self._skipped = table, rule, skipped
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape" if rule.each_byte else "replace")
        self._to_strip = rule.strip_count
        self._begun = b""  # the unfinished character at the end of the context
        self._open = b""  # what came since and may belong to it
        self._take_context(context)

    def push(self, ids: Iterable[int]) -> str:
        """Text that became certain with these ids; may be empty."""
        data = self._table.join(ids, skipped=self._skipped)
        return self._text(self._decoder.decode(self._continued(data) if self._begun and data else data))

    def flush(self) -> str:
        """Return what is left at the end of the sequence: an incomplete character comes out as U+FFFD."""
        rest = self._open if self._rule.each_byte else b""
        self._begun = self._open = b""
        return self._text(self._decoder.decode(rest, True))

    def _text(self, decoded: str) -> str:
        text = _ESCAPED.sub(_REPLACEMENT, decoded) if self._rule.each_byte else decoded
        while self._to_strip and text:
            if not text.startswith(self._rule.strip):
                self._to_strip = 0
                break
            text, self._to_strip = text[1:], self._to_strip - 1
        return text

    def _take_context(self, context: Sequence[int]) -> None:
        """Note whether a text has begun, and its last character if that is unfinished. Few tokens need a look."""
        seen = 0
        while self._to_strip and seen < len(context):
            self.push(context[seen : seen + 1])
            seen += 1
        tail, at = b"", len(context)
        while at > 0 and len(tail) < _LONGEST_CHARACTER:
            at -= 1
            tail = self._table.join(context[at : at + 1], skipped=self._skipped) + tail
        self._decoder.reset()
        self._decoder.decode(tail)
        self._begun = self._decoder.getstate()[0]
        self._decoder.reset()
        if self._begun:
            self._to_strip = 0

    def _continued(self, data: bytes) -> bytes:
        """Return what `data` comes to behind the unfinished character of the context: the whole of both where it
        finishes that, nothing while it may.

        Where it does not, the character's U+FFFD is the context's: bytes that would have belonged to the same one are
        left out.
        """
        self._open += data
        whole = self._begun + self._open
        length = 2 if whole[0] < 0xE0 else 3 if whole[0] < 0xF0 else 4
        for end in range(len(self._begun) + 1, min(len(whole), length) + 1):
            if not _begins_character(whole[:end], length):
                whole = self._open if self._rule.each_byte else whole[end - 1 :]
                break
        else:
            if len(whole) < length:
                return b""
        self._begun = self._open = b""
        return whole


def _begins_character(data: bytes, length: int) -> bool:
    """Return whether some character of `length` bytes begins so. Only its second byte depends on the first; any others
    stand for the rest.
    """
    try:
        (data + b"\x80" * (length - len(data))).decode()
    except UnicodeDecodeError:
        return False
    return True


class WindowStream:
    """Decodes by a function that only knows whole sequences, over a short window.

    Some decoders treat the first token of a text differently, so the window begins one step back, and what it gained
    is given out. While it ends in U+FFFD it waits for as many tokens as a character can be spread over.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], context: Sequence[int] = ()) -> None:
        self._decode = decode
        self._window = list(context[-_LONGEST_CHARACTER - 2 :])  # ids still needed to decode the next one
        self._given = len(self._window)  # how many of them have been given out as text

    def push(self, ids: Iterable[int]) -> str:
        """Text that became certain with these ids; may be empty."""
        return "".join(self._push_one(token) for token in ids)

    def flush(self) -> str:
        """Return what is left at the end of the sequence."""
        text = self._gained(self._decode(self._window))
        self._window, self._given = [], 0
        return text

    def _push_one(self, token: int) -> str:
        self._window.append(token)
        whole = self._decode(self._window)
        waiting = len(self._window) - self._given
        if whole.endswith(_REPLACEMENT) and waiting <= _LONGEST_CHARACTER:
            return ""
        text = self._gained(whole)
        self._window = self._window[self._given :]
        self._given = len(self._window)
        return text

    def _gained(self, whole: str) -> str:
        before = self._decode(self._window[: self._given])
        return whole[len(before) :]
