"""Lines and tables that fit the width of a terminal: cut between words and behind commas, never inside of a word.

A table whose columns do not fit even so becomes a block of lines for each row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

_HANGING = 4  # columns that the continuation of a line is further in than its beginning
_SHORTEST = 20  # columns that a line has at least, however deep it is indented
_PIECE = re.compile(r"\s*[^\s,]+,*|\s*,+")  # a word; of a list without blanks each element with its comma


def wrap_words(text: str, width: int, further: int | None = None) -> list[str]:
    """`text` in lines of at most `width` columns. What cannot be cut (a path) stays whole, and may be longer.

    `further`: columns in front of all lines but the first; None: as the first line is indented, and `_HANGING` more.
    """
    margin = len(text) - len(text.lstrip(" "))
    further = min(margin + _HANGING, max(0, width - _SHORTEST)) if further is None else further
    lines, line = [], ""
    for piece in _PIECE.findall(text):
        if line.strip() and len(line) + len(piece) > width:
            lines.append(line)
            line = " " * further + piece.lstrip(" ")
        else:
            line += piece
    return [*lines, line]


def fitted_line(text: Text, width: int, further: int | None = None) -> Text:
    """The same text, cut into lines as `wrap_words` cuts them, with its styles."""
    lines: list[Text] = []
    start = 0
    for number, line in enumerate(wrap_words(text.plain, width, further)):
        bare = line.lstrip(" ") if number else line
        start = text.plain.index(bare, start) if bare else start
        lines.append(Text(" " * (len(line) - len(bare)) if number else "") + text[start : start + len(bare)])
        start += len(bare)
    return Text("\n").join(lines)


class FittedLine:
    """One line of text that is cut where the terminal ends. In a file or a pipe it stays one line, for programs.

    `further`: see `wrap_words`.
    """

    def __init__(self, text: Text | str, further: int | None = None) -> None:
        self.text = Text(text) if isinstance(text, str) else text
        self.further = further

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = fitted_line(self.text, options.max_width, self.further) if console.is_terminal else self.text.copy()
        shown.no_wrap, shown.overflow = True, "ignore"
        yield shown


class FittedTable:
    """A table, or blocks of lines where its columns do not fit. `framed`: with lines around it and between its
    columns."""

    def __init__(self, *columns: str, title: str = "", framed: bool = True) -> None:
        self._columns, self._title, self._framed = columns, title, framed
        self._rows: list[tuple[str, ...]] = []

    def add_row(self, *cells: str) -> None:
        """One cell for each column."""
        self._rows.append(cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._title:
            yield FittedLine(Text(self._title, "italic"))
        frames = 3 * len(self._columns) + 1 if self._framed else len(self._columns)
        widths = column_widths([self._columns, *self._rows], options.max_width - frames)
        if widths is None:
            yield from self._blocks()
            return
        table = Table() if self._framed else Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
        for column, width in zip(self._columns, widths, strict=True):
            table.add_column(column, width=width, overflow="fold", no_wrap=False)
        for cells in self._rows:
            table.add_row(*(Text("\n".join(_cell(text, width))) for text, width in zip(cells, widths, strict=True)))
        yield table

    def _blocks(self) -> Iterator[FittedLine]:
        for cells in self._rows:
            named = [(column, text) for column, text in zip(self._columns, cells, strict=True) if text]
            for number, (column, text) in enumerate(named):
                line = Text.assemble("  " if number else "", (f"{column}: " if column else "", "bold"), text)
                yield FittedLine(line)


def column_widths(rows: Sequence[Sequence[str]], available: int) -> list[int] | None:
    """Return how wide each column is to be, for all to be `available` wide together at most; None where their words do
    not fit.

    Each column has its longest word at least; what is left goes to those that lack most.
    """
    columns = list(zip(*rows, strict=True))
    widths = [max(len(piece) for text in column for piece in _pieces(text)) for column in columns]
    wanted = [max(map(len, column)) for column in columns]
    left = available - sum(widths)
    if left < 0:
        return None
    while left > 0 and widths != wanted:
        lacking = max(range(len(widths)), key=lambda n: wanted[n] - widths[n])
        widths[lacking] += 1
        left -= 1
    return widths


def _cell(text: str, width: int) -> list[str]:
    return wrap_words(text, width, further=0)


def _pieces(text: str) -> list[str]:
    return [piece.strip() for piece in _PIECE.findall(text)] or [""]
