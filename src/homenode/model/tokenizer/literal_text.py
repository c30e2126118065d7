"""Names of control tokens in what clients wrote, kept from becoming turns: hidden while a template renders, text after.

A name such as `<|im_end|>` in a message is the same characters as the token that the template writes, and would become
that token. So each is replaced by a mark that nobody outside can guess. In the rendered conversation the names that are
left are the template's own; a run of text that holds marks is encoded, with the names in their places again, by a
tokenizer that knows no control tokens.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from homenode.model.tokenizer.pieces import PieceEncoder

_PLAIN_TAG = re.compile(r"</?[A-Za-z_]+>")  # templates look for <think> and the like in messages, and cut them out


class HiddenNames:
    """The names hidden in one conversation. `names`: what to hide."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = sorted(names, key=len, reverse=True)  # one may be a part of another
        self._key = secrets.token_hex(12)
        self.marks = re.compile(f"{self._key}([0-9]{{6}})")
        self.any = False

    def hide(self, value: Any) -> Any:
        """`value`, a text or what JSON makes of texts, with marks in place of names."""
        if isinstance(value, str):
            return self._hide_in(value)
        if isinstance(value, list):
            return [self.hide(entry) for entry in value]
        if isinstance(value, Mapping):
            return {key: self.hide(entry) for key, entry in value.items()}
        return value

    def _hide_in(self, text: str) -> str:
        for number, name in enumerate(self._names):
            if name in text:
                self.any = True
                text = text.replace(name, f"{self._key}{number:06d}")
        return text

    def reveal(self, text: str) -> str:
        """`text` with the names in place of their marks."""
        return self.marks.sub(self.name, text) if self.any else text

    def name(self, mark: re.Match[str]) -> str:
        """The name that a mark stands for."""
        return self._names[int(mark[1])]


class LiteralEncoder:
    """Encodes conversations with hidden names. Safe to use from several threads."""

    def __init__(self, library: Library, is_written: Callable[[str], bool]) -> None:
        """`is_written`: whether the chat template writes a text."""
        self._library = library
        added = {
            int(index): token for index, token in library.get_added_tokens_decoder().items() if token.content.strip()
        }
        self._control = {
            index: token
            for index, token in added.items()
            if token.special or (is_written(token.content) and not _PLAIN_TAG.fullmatch(token.content))
        }
        self._by_name = {token.content: token for token in self._control.values()}
        self._names = re.compile("|".join(map(re.escape, sorted(self._by_name, key=len, reverse=True))) or r"(?!)")
        self._divider = (
            f"\ufdd0{secrets.token_hex(12)}"  # a token that no text has: it stands for the template's own before a run
        )

    def hidden_names(self) -> HiddenNames:
        """Return the hidden names for one conversation."""
        return HiddenNames(self._by_name)

    def pieces(
        self, text: str, hidden: HiddenNames, encode: Callable[[str], Iterator[list[int]]]
    ) -> Iterator[list[int]]:
        """The token ids of a rendered conversation in order.

        `encode`: how text is encoded in which all names are the template's own.
        """
        at = 0
        while (mark := hidden.marks.search(text, at)) is not None:
            begin, before = self._last_name(text, at, mark.start())
            end, behind = self._first_name(text, mark.end())
            if begin > at:
                yield from encode(text[at:begin])
            run = hidden.marks.sub(hidden.name, text[begin:end])
            run = run.lstrip() if before is not None and before.rstrip else run
            run = run.rstrip() if behind is not None and behind.lstrip else run
            yield from self._encode_run(run, after_token=begin > 0)
            at = end
        if at < len(text):
            yield from encode(text[at:])

    def _last_name(self, text: str, start: int, end: int) -> tuple[int, AddedToken | None]:
        """Return where the last control token of a part ends, and that token; the part's start without one."""
        found = ((place + len(name), name) for name in self._by_name if (place := text.rfind(name, start, end)) >= 0)
        last, name = max(found, default=(start, ""))
        return last, self._by_name.get(name)

    def _first_name(self, text: str, start: int) -> tuple[int, AddedToken | None]:
        """Return where the first control token from `start` on begins, and that token; the text's end without one."""
        found = self._names.search(text, start)
        return (len(text), None) if found is None else (found.start(), self._by_name[found[0]])

    def _encode_run(self, run: str, *, after_token: bool) -> Iterator[list[int]]:
        for name in self._whole_words:
            run = run.replace(name, f"{name[0]}{self._divider}{name[1:]}")
        divider = self._without_control_library.token_to_id(self._divider)
        for piece in self._without_control.pieces(f"{self._divider}{run}" if after_token else run):
            yield [token for token in piece if token != divider]

    @cached_property
    def _whole_words(self) -> list[str]:
        """Names that would become their tokens even so, because the vocabulary has them as words."""
        encode = self._without_control_library.encode
        return [
            token.content
            for index, token in self._control.items()
            if index in encode(token.content, add_special_tokens=False).ids and len(token.content) > 1
        ]

    @cached_property
    def _without_control(self) -> PieceEncoder:
        return PieceEncoder(self._without_control_library)

    @cached_property
    def _without_control_library(self) -> Library:
        """The same tokenizer, to which control tokens are text."""
        description = json.loads(self._library.to_str())
        description["added_tokens"] = [each for each in description["added_tokens"] if each["id"] not in self._control]
        library = Library.from_str(json.dumps(description))
        library.add_special_tokens([AddedToken(self._divider, special=True, normalized=False)])
        return library
