"""Text that comes in pieces, broken into lines between words. Pure."""

from __future__ import annotations

from rich.cells import cell_len

_TAB = 8


class WordWrap:
    """Breaks lines before a word that does not fit; a word longer than a line is left to the terminal.

    A word is held until its end is there, and blanks until it is known whether a line end takes their place. So what
    `feed` gives lags behind by a word. A character of two columns, as Chinese ones are, is a word by itself.
    """

    def __init__(self, column: int = 0) -> None:
        """`column`: where on the line the text begins."""
        self._column = column
        self._blanks = ""
        self._word = ""
        self._too_long = False  # the word is longer than a line, and printed as it comes

    def feed(self, piece: str, width: int) -> str:
        """Return what of the text can be printed now. `width`: columns of a line, at present."""
        return "".join(self._character(character, width) for character in piece)

    def end(self, width: int) -> str:
        """Return what is left."""
        return self._end_word(width)

    def _character(self, character: str, width: int) -> str:
        if character == "\n":
            out = self._end_word(width) + "\n"
            self._column, self._blanks = 0, ""
            return out
        if character.isspace():
            out = self._end_word(width)
            self._blanks += character
            return out
        if cell_len(character) > 1:
            return self._end_word(width) + self._put(character, width)
        if self._too_long:
            self._column = self._column % width + 1
            return character
        self._word += character
        if cell_len(self._word) <= width:
            return ""
        self._too_long = True
        word, self._word = self._word, ""
        return self._put(word, width)

    def _end_word(self, width: int) -> str:
        word, self._word, self._too_long = self._word, "", False
        return self._put(word, width) if word else ""

    def _put(self, word: str, width: int) -> str:
        """The word behind its blanks, or on a line of its own."""
        blanks, self._blanks = self._blanks.expandtabs(_TAB), ""
        size, begin = cell_len(word), self._column + len(blanks)
        if self._column and begin + size > width:
            blanks, begin = "\n", 0
        self._column = begin + size
        if self._column > width:  # where a terminal puts what is longer than a line
            self._column %= width
        return blanks + word
