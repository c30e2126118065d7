"""The vocabulary of a model as llguidance has to know it: the bytes of each token, and which tokens are no text."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from homenode.errors import InternalError, UnsupportedError

if TYPE_CHECKING:
    from llguidance import LLTokenizer


_PAUSE_S = 0.05  # in which a step is begun by whoever waits for the interpreter's lock
_SLICES = 2  # of the library's default ones, which speed up masks of long strings; the rest add little to these


class TokenTexts(Protocol):
    """The part of a tokenizer that grammars ask for."""

    @property
    def bytes_are_text(self) -> bool:
        """Return whether the text of an answer is what the bytes of its tokens spell, one after another."""

    @property
    def special_token_ids(self) -> Collection[int]:
        """Tokens that are no text of an answer: control tokens."""

    @property
    def stop_token_ids(self) -> Collection[int]:
        """Tokens that end an answer by what the tokenizer's files say."""

    def token_bytes(self, token: int) -> bytes: ...


class Vocabulary:
    """Safe to use from several threads."""

    def __init__(self, tokenizer: TokenTexts, size: int, end_tokens: Iterable[int]) -> None:
        """`size`: columns of the logits. `end_tokens`: those that end an answer, which come where a grammar may end."""
        self._tokenizer, self.size = tokenizer, size
        self.end_tokens = tuple(sorted({token for token in end_tokens if 0 <= token < size}))
        self._library: LLTokenizer | None = None
        self._tokens: _TokenList | None = None  # beside it
        self._lock = threading.Lock()

    @property
    def end_bits(self) -> tuple[tuple[int, int], ...]:
        """Word and bit of each token that ends an answer, in a mask of 32 tokens a word."""
        return tuple((token // 32, token % 32) for token in self.end_tokens)

    @property
    def library(self) -> LLTokenizer:
        """The vocabulary in llguidance; made when it is asked for first, which takes some tenths of a second.

        UnsupportedError for a vocabulary without a token that ends answers, or whose bytes are not its text.
        """
        with self._lock:
            if self._library is None:
                self._library = self._build()
            return self._library

    @property
    def texts(self) -> Sequence[bytes]:
        """[tokens] the bytes of each. Raises what `library` does."""
        return self._listed().tokens

    @property
    def special(self) -> frozenset[int]:
        """Tokens that are no text. Raises what `library` does."""
        return frozenset(self._listed().special_token_ids)

    def _listed(self) -> _TokenList:
        _ = self.library
        assert self._tokens is not None  # the library was made of it
        return self._tokens

    def _build(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        if not self.end_tokens:
            raise UnsupportedError(
                "this model has no token that ends an answer, so that none can be bound by a grammar"
            )
        if not self._tokenizer.bytes_are_text:
            raise UnsupportedError(
                "the tokens of this model do not spell the bytes of its text: no grammar can bind it"
            )
        self._tokens = self._token_list(self._tokenizer)
        tokens: Any = self._tokens
        # The library keeps the interpreter's lock in each of these calls: of 150,000 tokens the first took 0.23 s, its
        # default slices 0.31 s more, these 0.20 s. What others have to do meanwhile is done between the two.
        plain = LLTokenizer(tokens, eos_token=list(self.end_tokens), slices=[])
        time.sleep(_PAUSE_S)
        return plain.with_slices(LLTokenizer.general_slices()[-_SLICES:])

    def _token_list(self, tokenizer: TokenTexts) -> _TokenList:
        return _TokenList(tokenizer, self.size, self.end_tokens)


class TrialVocabulary(Vocabulary):
    """A vocabulary of only such tokens as spell every text that all of them spell: single bytes, tokens with a byte
    that is no token by itself, and those that are no text. Whether a grammar is one, and whether a text of it can
    begin, comes out the same, and llguidance makes this in a tenth of the time, in which it keeps the interpreter's
    lock.
    """

    def _token_list(self, tokenizer: TokenTexts) -> _TokenList:
        found = super()._token_list(tokenizer)
        special = frozenset(found.special_token_ids)
        texts = {token: text for token, text in enumerate(found.tokens) if token not in special}
        single = b"".join(text for text in texts.values() if len(text) == 1)
        left_out = [token for token, text in texts.items() if len(text) > 1 and not text.translate(None, single)]
        for token in left_out:
            found.tokens[token] = b""
        return found


class _TokenList:
    """The tokens as `LLTokenizer` takes them."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: TokenTexts, size: int, end_tokens: tuple[int, ...]) -> None:
        self.eos_token_id = end_tokens[0]
        self.tokens = [tokenizer.token_bytes(token) for token in range(size)]
        special = {*tokenizer.special_token_ids, *tokenizer.stop_token_ids, *end_tokens}
        self.special_token_ids = sorted(token for token in special if 0 <= token < size)

    def __call__(self, text: object) -> NoReturn:
        """Asked for only where tokens are forced, which no grammar of ours allows: the model cuts its text itself."""
        raise InternalError("llguidance asked for the tokens of a text, which it does where tokens are forced only")
