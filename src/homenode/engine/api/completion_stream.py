"""The text of one continuation while it is made."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from homenode.engine.api.completion import Answer, Completion


class CompletionStream(Iterator[str]):
    """Pieces of text; the request begins with the first one that is asked for, and ends when the stream is closed."""

    def __init__(self, pieces: Generator[str, None, None], answer: Answer) -> None:
        self._pieces, self._answer = pieces, answer

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """End the request, if it has not ended."""
        self._pieces.close()

    @property
    def completion(self) -> Completion:
        """Return what came so far, without log-probabilities; `finish_reason` is `abort` where it has not ended."""
        return self._answer.completion(logprobs=False)
