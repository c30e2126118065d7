"""The special tokens around a text, and the one place that decides which of them a prompt gets.

A text gets those that the file adds, unless the request's `add_special_tokens` is false. What the file adds is told by
tokenizer.json's post-processor in a folder (`add_bos_token` in tokenizer_config.json changes nothing, as in
transformers) and by its keys and the kind of its vocabulary in a GGUF file. A conversation gets them from its chat
template; what the file adds to that:

| file | `add_special_tokens` | template writes BOS | BOS in the prompt |
|---|---|---|---|
| GGUF that adds BOS | not given | no | one, the file's |
| GGUF that adds BOS | not given | yes | one, the template's |
| GGUF that adds none, folder | not given | no | none |
| GGUF that adds none, folder | not given | yes | one, the template's |
| any | false | as it does | as the template has it |
| any that adds BOS | true | no or yes | one |

A template for a GGUF file may rely on the file, as readers of such files add the file's BOS to conversations as well;
one in a folder is complete by itself. BOS is never there twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from tokenizers import Tokenizer as Library

_ANY_TEXT = ("a", "0", " ", ".")


@dataclass(frozen=True)
class SurroundingTokens:
    """Ids that the file adds before and after a text. `opens_chats`: those before go before a conversation as well
    where the request does not say. `between`: ids between two texts that are read together, of files that add any
    around such a pair.
    """

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    opens_chats: bool = False
    between: tuple[int, ...] = ()

    def pair(self, first: list[int], second: list[int]) -> list[int]:
        """Two texts that were encoded without special tokens, as they are read together."""
        return [*self.before, *first, *self.between, *second, *self.after]

    def second_from(self, first: list[int]) -> int:
        """Return where the second text begins in such a pair."""
        return len(self.before) + len(first) + len(self.between)

    def chat_prompt(self, ids: list[int], add_special_tokens: bool | None) -> list[int]:
        """The prompt of a conversation that was rendered and encoded to `ids` without special tokens."""
        return list(chain.from_iterable(self.chat_pieces([ids], add_special_tokens)))

    def chat_pieces(self, pieces: Iterable[list[int]], add_special_tokens: bool | None) -> Iterator[list[int]]:
        """The same where the ids come in pieces."""
        before = self.before if add_special_tokens or (add_special_tokens is None and self.opens_chats) else ()
        after = self.after if add_special_tokens else ()
        begun, held = False, list[int]()
        for piece in pieces:
            held += piece
            if not begun and len(held) < len(before):
                continue
            if not begun and tuple(held[: len(before)]) != before:
                held = [*before, *held]
            begun = True
            keep = max(0, len(held) - len(after))  # the last ones may be what is added behind
            yield held[:keep]
            held = held[keep:]
        held = held if begun else [*before, *held]
        yield held if tuple(held[-len(after) :]) == after else [*held, *after]


def beginning(ids: list[int], most: int | None, behind: Sequence[int]) -> list[int]:
    """The first `most` ids (None: all), the last of which are those that stand behind every text."""
    if most is None or len(ids) <= most:
        return ids
    return [*ids[: max(0, most - len(behind))], *behind][:most]


def read_surrounding_tokens(library: Library, *, opens_chats: bool) -> SurroundingTokens:
    """Return what the library puts around a text when it is asked for special tokens."""
    for text in _ANY_TEXT:
        bare = library.encode(text, add_special_tokens=False).ids
        if not bare:
            continue
        whole = library.encode(text, add_special_tokens=True).ids
        for at in range(len(whole) - len(bare) + 1):
            if whole[at : at + len(bare)] == bare:
                before, after = tuple(whole[:at]), tuple(whole[at + len(bare) :])
                return SurroundingTokens(before, after, opens_chats, _between(library, text, before, bare, after))
    return SurroundingTokens()


def _between(
    library: Library, text: str, before: tuple[int, ...], bare: list[int], after: tuple[int, ...]
) -> tuple[int, ...]:
    """Return what stands between the two texts of a pair, each of which is `text`, with the ids `bare`."""
    pair = library.encode(text, text, add_special_tokens=True).ids
    begin, end = len(before) + len(bare), len(pair) - len(bare) - len(after)
    fits = begin <= end and pair[:begin] == [*before, *bare] and pair[end:] == [*bare, *after]
    return tuple(pair[begin:end]) if fits else ()
