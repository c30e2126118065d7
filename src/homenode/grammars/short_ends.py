"""Short ends: tokens that complete a text bound by a grammar, from where its matcher is.

llguidance tells which tokens may come next, and not how far away the end is. So an end is searched for: token after
token, first what usually closes (quotes, brackets), then one token of each kind, where nothing changes each single
byte. What is found is short, and not always the shortest. The search counts its looks and never the time, so that it
finds the same on every machine.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from homenode.grammars.vocabulary import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher

End = tuple[int, ...]  # the tokens that are left, without the one that ends the answer

LONGEST_END = 512  # tokens
_MOST_REPLACED = 4  # tokens of an end that another one stands for
_FEW = 64  # tokens of a mask that are looked at one by one
_LONGEST_GROUP = 16  # digits and letters of a number in which nothing else may come, such as a part of a UUID
_KNOWN_MASKS = 256  # whose candidates are remembered: texts of one grammar have the same masks again and again
# Kinds of tokens, in the order in which they are tried.
_QUOTE, _BRACKET, _NEXT, _CLOSING, _DIGIT, _LOWER, _UPPER, _OTHER, _OPENING, _BLANK, _WIDE, _CONTROL = range(12)
_EACH_BYTE = -1  # at the end of a path: every single byte that may come there


class _Node(NamedTuple):
    """A path of the frontier, in the order in which nodes are expanded: by `cost`, the longest path first, then by
    `number`. `mask_before`: mark of the mask one token earlier; `unchanged`: tokens at the end of the path that did not
    change it.
    """

    cost: int
    minus_length: int
    number: int
    path: End
    mask_before: int
    unchanged: int


class ShortEnds:
    """Finds ends with the tokens of a vocabulary. For any threads, each with a matcher of its own."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._library, self._texts, self._special = vocabulary.library, vocabulary.texts, vocabulary.special
        self._mask_bytes, pairs = 4 * -(-vocabulary.size // 32), -(-vocabulary.size // 64)
        self._weights = 2 * np.random.default_rng(1).integers(2**63, size=pairs, dtype=np.uint64) + 1
        lengths = np.fromiter(map(len, self._texts), np.intp, len(self._texts))
        self._kinds = _kinds(self._texts, lengths)
        self._kinds[np.array(sorted(self._special), np.intp)] = _CONTROL
        longest = np.argsort(-lengths, kind="stable")
        self._by_kind = [longest[self._kinds[longest] == kind] for kind in range(_CONTROL + 1)]
        single = [token for token in np.flatnonzero(lengths == 1)[::-1].tolist() if token not in self._special]
        self._candidates: dict[int, tuple[list[int], bool]] = {}  # by mark of the mask
        self._bytes = {self._texts[token][0]: token for token in single}

    def find(
        self, matcher: LLMatcher, looks: int, tail: End = (), longest: int = LONGEST_END
    ) -> tuple[End | None, int]:
        """A short end from where `matcher` is, None where none was found, and how many looks at a mask that took, at
        most `looks`. `tail`: what would be the rest of one if a path led to it. `longest`: tokens of a path. The
        matcher is where it was afterwards.
        """
        return _Search(self, matcher, looks, tail, min(longest, LONGEST_END)).run()

    def shortened(self, end: End, matcher: LLMatcher) -> End:
        """The same text in fewer tokens, where the vocabulary has longer ones."""
        if self._special.intersection(end):
            return end
        cut = self._cut(b"".join(self._texts[token] for token in end))
        return cut if cut is not None and len(cut) < len(end) and self.completes(matcher, cut) else end

    def completes(self, matcher: LLMatcher, end: End) -> bool:
        """Return whether the text would be complete with `end`. The matcher is where it was afterwards."""
        taken = matcher.try_consume_tokens(list(end))
        complete = bool(taken == len(end) and matcher.is_accepting())
        matcher.rollback(taken)
        return complete

    def begun(self, end: End, token: int) -> End | None:
        """Return what is left of an end whose text begins with that of `token`; None where it does not."""
        if token == end[0]:
            return end[1:]
        text, begin = self._texts[token], b""
        for each in end:
            if each in self._special or len(begin) >= len(text):
                break
            begin += self._texts[each]
        return self._without(end, len(text)) if text and token not in self._special and begin.startswith(text) else None

    def carried(self, matcher: LLMatcher, end: End, token: int) -> End | None:
        """Return what is left of an end after `token`, which the matcher has just taken: what follows the bytes of it
        that the token has, all of it, or all but its first tokens, for which the token stands. None where it ends
        nothing any more.
        """
        return next((rest for rest in self._rests(end, token) if self.completes(matcher, rest)), None)

    def closes(self, token: int) -> bool:
        """Return whether it is brackets or quotes."""
        return bool(self._kinds[token] <= _BRACKET)

    def is_number(self, token: int) -> bool:
        """Return whether it is digits, and nothing beside them: words, which a longer one may run past an
        end, are not.
        """
        return self._texts[token].isdigit()

    def are_figures(self, candidates: Sequence[int]) -> bool:
        """Return whether digits and small letters may come and nothing else but capitals, as within hexadecimal
        numbers.
        """
        kinds = {int(self._kinds[token]) for token in candidates}
        return {_DIGIT, _LOWER} <= kinds <= {_DIGIT, _LOWER, _UPPER}

    def is_plain(self, token: int) -> bool:
        """Return whether it has nothing but what words and sentences have: it opens no part of a form, as a rule."""
        return token not in self._special and not self._texts[token].translate(None, _PLAIN)

    def mark(self, mask: npt.NDArray[np.uint32]) -> int:
        """A number that tells masks apart."""
        return int(mask.view(np.uint64) @ self._weights)

    def candidates(self, mask: npt.NDArray[np.uint32], mark: int) -> tuple[list[int], bool]:
        """The longest token of each kind among those of a mask, what is most likely to end a text first: brackets, or
        quotes where the text of a string may go on; and whether it may, which is where capital letters may come.
        """
        found = self._candidates.get(mark)
        if found is None:
            if len(self._candidates) >= _KNOWN_MASKS:
                self._candidates.clear()
            found = self._candidates[mark] = self._candidates_of(mask)
        return found

    def _candidates_of(self, mask: npt.NDArray[np.uint32]) -> tuple[list[int], bool]:
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[: len(self._texts)].view(np.bool_)
        found: dict[int, int] = {}
        if np.count_nonzero(bits) > _FEW:
            for kind, tokens in enumerate(self._by_kind):
                hit = bits[tokens]
                if len(tokens) and hit[at := int(hit.argmax())]:
                    found[kind] = int(tokens[at])
        else:
            for token in np.flatnonzero(bits).tolist():
                kind = int(self._kinds[token])
                if kind not in found or len(self._texts[token]) > len(self._texts[found[kind]]):
                    found[kind] = token
        in_text = _UPPER in found
        first = _QUOTE if in_text else _BRACKET
        return [found[kind] for kind in sorted(found, key=lambda kind: (kind != first, kind))], in_text

    def any_token(self, matcher: LLMatcher) -> int | None:
        """A token that may come next; None where only an end may."""
        mask = self.empty_mask()
        self.compute_mask(matcher, mask.ctypes.data)
        candidates, _ = self.candidates(mask, self.mark(mask))
        return candidates[0] if candidates else None

    def singles(self, mask: npt.NDArray[np.uint32]) -> list[int]:
        """The tokens of a mask that are one byte."""
        return [token for token in self._bytes.values() if mask[token // 32] >> (token % 32) & 1]

    def empty_mask(self) -> npt.NDArray[np.uint32]:
        """[words] memory for a mask, an even number of words."""
        return np.zeros(2 * len(self._weights), np.uint32)

    def compute_mask(self, matcher: LLMatcher, address: int) -> None:
        """Into the memory that `empty_mask` has made, at this address."""
        matcher.unsafe_compute_mask_ptr(address, self._mask_bytes)

    def _rests(self, end: End, token: int) -> Iterator[End]:
        if token not in self._special and not self._special.intersection(end):
            text, whole = self._texts[token], b"".join(self._texts[token] for token in end)
            for count in range(min(len(text), len(whole)), 0, -1):
                if text.endswith(whole[:count]) and (rest := self._without(end, count)) is not None:
                    yield rest
        yield from (end[first:] for first in range(min(len(end), _MOST_REPLACED) - 1, -1, -1))

    def _without(self, end: End, count: int) -> End | None:
        """An end without its first `count` bytes."""
        for index, token in enumerate(end):
            text = self._texts[token]
            if count < len(text):
                first = () if not count else self._cut(text[count:])
                return None if first is None else (*first, *end[index + (count > 0) :])
            count -= len(text)
        return ()

    def _cut(self, text: bytes) -> End | None:
        """Tokens of a text, the longest first; None where there are none for some byte."""
        try:
            tokens = self._library.greedy_tokenize(text.decode())
        except UnicodeDecodeError:
            tokens = [self._bytes.get(byte, -1) for byte in text]
        return None if -1 in tokens or self._special.intersection(tokens) else tuple(tokens)


class _Search:
    """A best-first search. The cost of a path counts the tokens that were not the first choice. Where a token changes
    nothing (the mask stays the same) it is taken again and again, but at growing cost; of two paths of one length with
    the same mask only the first is expanded.
    """

    def __init__(self, ends: ShortEnds, matcher: LLMatcher, looks: int, tail: End, longest: int) -> None:
        self._ends, self._matcher, self._looks, self._tail, self._longest = ends, matcher, looks, tail, longest
        self._scratch = ends.empty_mask()
        self._address = self._scratch.ctypes.data
        self._at: End = ()  # tokens that the matcher has taken
        self._seen: set[tuple[int, int]] = set()  # lengths and marks of masks
        self._frontier: list[_Node] = [_Node(0, 0, 0, (), 0, 0)]  # a heap
        self._count = 0  # of nodes

    def run(self) -> tuple[End | None, int]:
        looks, found = 0, None
        while self._frontier and looks < self._looks and found is None:
            node = heapq.heappop(self._frontier)
            looks += 1
            if node.path and node.path[-1] == _EACH_BYTE:
                self._move_to(node.path[:-1])
                for token in self._ends.singles(self._mask()):
                    self._push(node.cost, (*node.path[:-1], token), node.mask_before, node.unchanged)
            elif self._move_to(node.path):
                if self._matcher.is_accepting():
                    found = node.path
                elif self._tail and self._ends.completes(self._matcher, self._tail):
                    found = (*node.path, *self._tail)
                elif len(node.path) < self._longest:
                    self._expand(node)
        self._move_to(())
        return (None if found is None else self._ends.shortened(found, self._matcher)), looks

    def _move_to(self, path: End) -> bool:
        """Take the matcher to the end of `path`; False where the grammar does not allow that."""
        same = len(self._at)
        if path[:same] != self._at:
            same = next(at for at, token in enumerate(self._at) if path[at : at + 1] != (token,))
        if back := len(self._at) - same:
            self._matcher.rollback(back)
        taken = self._matcher.try_consume_tokens(list(path[same:])) if same < len(path) else 0
        self._at = path[: same + taken]
        return self._at == path

    def _expand(self, node: _Node) -> None:
        path, mask = node.path, self._mask()
        known = self._ends.mark(mask)
        if (len(path), known) in self._seen:
            return
        self._seen.add((len(path), known))
        candidates, in_text = self._ends.candidates(mask, known)
        closed = not in_text and bool(path) and self._ends.closes(path[-1])  # brackets close one after another
        counted = len(candidates) == 1 and self._ends.is_number(candidates[0])  # goes on until others may come
        unchanged = node.unchanged + 1 if known == node.mask_before and not closed and not counted else 0
        if 0 < unchanged <= _LONGEST_GROUP and self._ends.are_figures(candidates):
            self._push(node.cost, (*path, candidates[0]), known, unchanged)
            return
        turns = unchanged.bit_count() == 1  # 1, 2, 4, ... tokens have changed nothing
        for index, token in enumerate(candidates if turns or not unchanged else candidates[:1]):
            self._push(node.cost + turns + (index > 0), (*path, token), known, unchanged)
        if not unchanged:
            self._push(node.cost + 2, (*path, _EACH_BYTE), known, unchanged)

    def _mask(self) -> npt.NDArray[np.uint32]:
        """Return where the matcher is; overwritten by the next one of this search."""
        self._ends.compute_mask(self._matcher, self._address)
        return self._scratch

    def _push(self, cost: int, path: End, mask_before: int, unchanged: int) -> None:
        self._count += 1
        heapq.heappush(self._frontier, _Node(cost, -len(path), self._count, path, mask_before, unchanged))


def _kinds(texts: Sequence[bytes], lengths: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """[tokens] the kind of each, by its first byte; quotes and brackets are tokens of characters that end JSON only."""
    joined = np.frombuffer(b"".join(texts) + b"?", np.uint8)  # so that the start of an empty text at the end is in it
    starts = np.cumsum(lengths) - lengths
    kinds = np.where(lengths > 0, _KIND_OF_BYTE[joined[starts]], _WIDE)
    others = np.concatenate([[0], np.cumsum(~_ENDS[joined])])
    closes = (lengths > 0) & (others[starts + lengths] == others[starts])
    return np.where(closes, np.where(joined[starts] == ord('"'), _QUOTE, _BRACKET), kinds)


def _kind_of(byte: int) -> int:
    if byte in b",:":
        return _NEXT
    if byte in b"'}])>":
        return _CLOSING
    if byte >= 128:
        return _WIDE
    if chr(byte).isdigit():
        return _DIGIT
    if chr(byte).isalpha():
        return _LOWER if byte >= ord("a") else _UPPER
    return _BLANK if byte in b" \n\t\r" else _OPENING if byte in b"{[(<\"'" else _OTHER


_PLAIN = bytes(byte for byte in range(256) if byte >= 128 or chr(byte).isalnum() or byte in b" .-_'!?")
_ENDS = np.array([byte in b'"}]' for byte in range(256)])
_KIND_OF_BYTE = np.array([_kind_of(byte) for byte in range(256)], np.intp)
