"""Programs that stay: loaded once, then asked one question after the other, so that two of them can take turns of a
second or two.

A program writes a JSON object with its `version` as soon as it is ready, reads questions from its standard input, each
a JSON object in a line, and answers each with a JSON object in a line that has its `version` as well. Other lines, such
as a library's warnings, are passed over.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Self

_LIMIT_S = 900.0  # for loading, and for an answer
_SHOWN = 600  # characters of what an ending program said last


class CommandFailed(Exception):
    """A command did not end well, or a standing program did not answer; the message says how."""


class Standing:
    """Starts programs when they are first asked, and ends them all in the end."""

    def __init__(self, limit_s: float = _LIMIT_S) -> None:
        self._limit_s = limit_s
        self._programs: dict[tuple[str, ...], _Program] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for program in self._programs.values():
            program.end()

    def ready(self, argv: Sequence[str], variables: Mapping[str, str]) -> int:
        """The process id of this program, which has been started and has loaded. Raises CommandFailed."""
        key = tuple(argv)
        if key not in self._programs:
            self._programs[key] = _Program(argv, variables)
            self._programs[key].line(self._limit_s)
        return self._programs[key].process.pid

    def ask(self, argv: Sequence[str], question: object) -> str:
        """The line a program that is ready answers with. Raises CommandFailed."""
        program = self._programs[tuple(argv)]
        program.send(json.dumps(question))
        return program.line(self._limit_s)


class _Program:
    """One of them. What it says on standard error is kept in a file of its own, for when it fails."""

    def __init__(self, argv: Sequence[str], variables: Mapping[str, str]) -> None:
        self._name = argv[0]
        self._errors = os.fdopen(os.memfd_create("errors"), "w+")
        try:
            self.process = subprocess.Popen(
                argv,
                env={**os.environ, **variables},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
            )
        except OSError as error:
            self._errors.close()
            raise CommandFailed(f"{self._name}: {error}") from error

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        try:
            print(line, file=self.process.stdin, flush=True)
        except OSError as error:
            raise self._ended() from error

    def line(self, limit_s: float) -> str:
        """The next line that is an answer."""
        assert self.process.stdout is not None
        watchdog = threading.Timer(limit_s, self.process.kill)
        watchdog.start()
        try:
            for line in self.process.stdout:
                if _is_answer(line):
                    return line
        finally:
            watchdog.cancel()
        raise self._ended()

    def end(self) -> None:
        """Its standard input ends, and then so does it."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
            self.process.wait(10)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
        self.process.wait()
        self._errors.close()

    def _ended(self) -> CommandFailed:
        code = self.process.wait()
        self._errors.seek(0)
        return CommandFailed(
            f"{self._name} ended with {code} instead of answering: {self._errors.read().strip()[-_SHOWN:]}"
        )


def _is_answer(line: str) -> bool:
    try:
        found: Any = json.loads(line)
    except ValueError:
        return False
    return isinstance(found, dict) and "version" in found
