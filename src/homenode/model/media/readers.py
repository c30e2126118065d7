"""The kinds of media that files may be of, and the module that reads each: it is imported where one is read."""

from __future__ import annotations

import importlib
from typing import Any

from homenode.model.media.prepared import FileReader

# By medium: a module with `file_reader`, which makes a reader of a family in words.
READERS = {"image": "homenode.model.pictures.reader"}


def file_reader(medium: str, words: dict[str, Any]) -> FileReader:
    """Return what reads files of a medium for a family of models, as its `family_words` has it. KeyError for an unknown
    medium.
    """
    made: FileReader = importlib.import_module(READERS[medium]).file_reader(words)
    return made
