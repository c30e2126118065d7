"""A vocabulary of bytes, and what a grammar makes of texts in it."""

from __future__ import annotations

from homenode.grammars.compile import compile_grammar
from homenode.grammars.matcher import make_matcher
from homenode.grammars.spec import GrammarSpec
from homenode.grammars.vocabulary import Vocabulary

END = 257


class ByteTexts:
    """A token is a byte; 256 and 257 are no text."""

    bytes_are_text = True
    special_token_ids = (256, END)
    stop_token_ids = (END,)

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else f"<{token}>".encode()


BYTES = Vocabulary(ByteTexts(), 300, [END])


def fits(spec: GrammarSpec, text: str) -> bool:
    """Whether `text` as a whole is what the grammar of `spec` allows."""
    matcher = make_matcher(BYTES, compile_grammar(spec, BYTES, "field").text)
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
