"""Forms of a log's lines: text for people, and JSON for programs that collect logs."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from homenode.logs.request_mark import current_request_mark

TEXT, JSON = "text", "json"
FORMATS = (TEXT, JSON)
_ACCESS = "uvicorn.access"  # the logger of a line for each HTTP request, whose values are the arguments of its text
_OF_ACCESS = ("client", "method", "path", "http_version", "status")


class ServiceForm(logging.Formatter):
    """`warning 2026-11-26 18:04:45,123 server: text`, with the name of the process."""

    def __init__(self, process: str) -> None:
        super().__init__(f"%(level)s %(asctime)s {process}: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        record.level = record.levelname.lower()
        return super().format(record)


class CommandForm(logging.Formatter):
    """`homenode: warning: text`, as the messages of a command are that are no log."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        return f"homenode: {record.levelname.lower()}: {super().format(record)}"


class JsonForm(logging.Formatter):
    """One JSON object a line: `time` (UTC), `level`, `process`, `logger`, `message`; `request_id` and `trace_id` where
    it is about a request; `exception` where there was one; those of an HTTP request where it tells of one.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
            **_names_of_request(record),
            **_access(record),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)  # without line breaks, and all of it ASCII


def form_of(process: str, format: str) -> logging.Formatter:
    """The form of a service's lines."""
    return JsonForm(process) if format == JSON else ServiceForm(process)


def plain_line(text: str, process: str, format: str) -> str:
    """A line that no logger wrote, in the form of the others."""
    if format == TEXT:
        return text
    return JsonForm(process).format(logging.LogRecord("homenode.log", logging.WARNING, "", 0, text, (), None))


def _names_of_request(record: logging.LogRecord) -> Mapping[str, str]:
    """The request that a record says it is about, else the one that is being handled."""
    mark = current_request_mark()
    found = {
        "request_id": getattr(record, "request_id", None) or (mark and mark.request_id),
        "trace_id": getattr(record, "trace_id", None) or (mark and mark.trace_id),
    }
    return {name: value for name, value in found.items() if value}


def _access(record: logging.LogRecord) -> Mapping[str, Any]:
    if record.name != _ACCESS or not isinstance(record.args, tuple) or len(record.args) != len(_OF_ACCESS):
        return {}
    return dict(zip(_OF_ACCESS, record.args, strict=True))
