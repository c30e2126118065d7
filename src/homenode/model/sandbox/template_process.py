"""The process that compiles and renders chat templates: `python -m homenode.model.sandbox.template_process FD`.

FD is one end of a socket pair, on which the process speaks frames: first a Ready, then an answer for every request.

    {"compile": SOURCE, "seconds": S}                   -> {} or a failure; templates are numbered in this order, from 0
    {"render": NUMBER, "characters": N, "seconds": S}   -> {"text": TEXT} of at most N characters, or a failure
    and a frame with the values to render with

A failure is {"failure": KIND, "message": TEXT} with a kind of `failure.Failure`. S is the processor time that the
kernel allows for the request.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from typing import Any

import jinja2

from homenode.model.sandbox.failure import Failure
from homenode.model.sandbox.frames import FrameStream, SandboxFrameError, encode
from homenode.model.sandbox.limits import allow_cpu, confine
from homenode.model.sandbox.templates import OutputTooLong, TemplateRefusal, render, template_environment

MEMORY_BYTES = 1 << 30  # of address space: a conversation of 64 MiB takes less, whatever its letters
_LONGEST_MESSAGE = 1000


class TemplateService:
    """Answers requests. Keeps the templates that were compiled."""

    def __init__(self) -> None:
        self._environment = template_environment()
        self._templates: list[jinja2.Template | None] = []

    def compile(self, source: str) -> dict[str, Any]:
        """The answer to a request to compile."""
        self._templates.append(None)

        def work() -> dict[str, Any]:
            self._templates[-1] = self._environment.from_string(source)
            return {}

        return _answer(work)

    def render(self, number: int, values: dict[str, Any], characters: int) -> dict[str, Any]:
        """The answer to a request to render."""
        template = self._templates[number]
        if template is None:
            return _failure(Failure.FAILED, "it could not be compiled")
        return _answer(lambda: {"text": render(template, values, characters)})


def _answer(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what `work` returns; whatever it raises becomes a failure."""
    try:
        return work()
    except TemplateRefusal as error:
        return _failure(Failure.REFUSED, str(error))
    except OutputTooLong as error:
        return _failure(Failure.LENGTH, str(error))
    except MemoryError:
        return _failure(Failure.MEMORY, f"it takes more than {MEMORY_BYTES >> 20} MiB of memory")
    except Exception as error:  # a template can fail in any way a program can
        return _failure(Failure.FAILED, f"{type(error).__name__}: {error}")


def _failure(kind: Failure, message: str) -> dict[str, Any]:
    short = message if len(message) <= _LONGEST_MESSAGE else message[:_LONGEST_MESSAGE] + "..."
    return {"failure": kind, "message": short}


def main(arguments: list[str]) -> int:
    """Answer requests until the stream ends; the exit code."""
    confine(MEMORY_BYTES)
    frames = FrameStream(socket.socket(fileno=int(arguments[0])))
    service = TemplateService()
    frames.send(encode({"ready": True}))
    while (request := frames.receive()) is not None:
        allow_cpu(float(request["seconds"]))
        answer = _answer_to(request, service, frames)
        try:
            body = encode(answer)
        except (SandboxFrameError, MemoryError):
            body = encode(_failure(Failure.LENGTH, "its text is too long to be handed over"))
        frames.send(body)
    return 0


def _answer_to(request: dict[str, Any], service: TemplateService, frames: FrameStream) -> dict[str, Any]:
    if "compile" in request:
        return service.compile(str(request["compile"]))
    values = frames.receive()
    return service.render(int(request["render"]), values or {}, int(request["characters"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
