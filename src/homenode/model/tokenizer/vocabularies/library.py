"""The `tokenizers` library behind names: whatever it raises about a vocabulary, panics included, becomes a
CheckpointError.

The library raises bare Exception for anything wrong in a file, and a panic of its code arrives as a BaseException
that no `except Exception` sees: it would end the thread that asked. What ends the whole process, a crash or an abort,
is met by trying a file before (`trial`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

from tokenizers import Tokenizer as Library

from homenode.errors import CheckpointError, HomenodeError

_log = logging.getLogger(__name__)
_PANIC = "PanicException"  # of pyo3_runtime, a module that cannot be imported
_LONGEST_MESSAGE = 300


@contextlib.contextmanager
def named_faults(what: str) -> Iterator[None]:
    """Raises CheckpointError, whose message begins with `what`, for any exception or panic of the body that has no
    name of ours.
    """
    try:
        yield
    except BaseException as error:
        raise _named(error, what) from None


def _named(error: BaseException, what: str) -> BaseException:
    """The error to raise in place of `error`: itself if it is one of ours or none about the vocabulary, such as
    KeyboardInterrupt.
    """
    if isinstance(error, HomenodeError) or not (isinstance(error, Exception) or type(error).__name__ == _PANIC):
        return error
    told = str(error).strip() or type(error).__name__
    return CheckpointError(f"{what}: {told[:_LONGEST_MESSAGE]}")


def library_from_json(text: str, name: str) -> Library:
    """A tokenizer from the text of a tokenizer.json, without what is for training: a length limit, padding, BPE
    dropout.

    `name`: what the text is called in messages. Raises CheckpointError.
    """
    with named_faults(f"{name} is not a tokenizer"):
        library = Library.from_str(text)
        library.no_truncation()  # cutting a prompt silently would change its meaning
        library.no_padding()
        if dropout := getattr(library.model, "dropout", None):
            _log.warning(
                "%s has a BPE dropout of %g, which makes tokens random in training; it is not used", name, dropout
            )
            library.model.dropout = None
    return library


def with_named_faults(library: Library) -> Library:
    """A stand-in for `library` that does the same, and raises CheckpointError in place of what the library raises."""
    return cast(Library, _NamedLibrary(library))


class _NamedLibrary:
    """A vocabulary of the library, whose faults at each text or token are errors with a name."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        """What is not called for each text or token."""
        found = getattr(self._library, name)
        return partial(_call, "what it was given", found) if callable(found) else found

    def encode(self, text: str, pair: str | None = None, **rest: Any) -> Any:
        """Encode as the library's. Raises CheckpointError when it fails on `text`."""
        return _call("this text", self._library.encode, text, pair, **rest)

    def decode(self, ids: Sequence[int], **rest: Any) -> Any:
        """Decode as the library's. Raises CheckpointError when it fails on `ids`."""
        return _call("these tokens", self._library.decode, ids, **rest)

    def id_to_token(self, token: int) -> Any:
        """Return the token as the library's. Raises CheckpointError when it fails on `token`."""
        return _call("this token", self._library.id_to_token, token)

    def token_to_id(self, text: str) -> Any:
        """Return the id as the library's. Raises CheckpointError when it fails on `text`."""
        return _call("this token", self._library.token_to_id, text)


def _call(subject: str, function: Callable[..., Any], *arguments: Any, **rest: Any) -> Any:
    """Return what the function returns.

    Raises CheckpointError for its faults; called for every token, so it is no context manager.
    """
    try:
        return function(*arguments, **rest)
    except BaseException as error:
        raise _named(error, f"the model's tokenizer fails on {subject}") from None
