"""Lines of --log-format json: an object each, whatever is in a message, with the names of the request it is about."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from typing import Any

import pytest

from homenode.logs.forms import JsonForm, plain_line
from homenode.logs.request_mark import RequestMark, reset_request_mark, set_request_mark
from homenode.logs.setup import FORMAT_VARIABLE, LEVEL_VARIABLE


def record(text: str, *values: object, name: str = "homenode.part", **more: Any) -> logging.LogRecord:
    made = logging.LogRecord(name, logging.WARNING, "", 0, text, values, None)
    vars(made).update(more)
    return made


def line(made: logging.LogRecord) -> dict[str, Any]:
    text = JsonForm("server").format(made)
    assert "\n" not in text and text.isascii()
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.parametrize("text", ["plain", "two\nlines", 'a "quote" \\ and \x00', "猫\ud800", ""])
def test_a_line_is_one_object_whatever_its_text(text: str) -> None:
    found = line(record("%s", text))
    assert (found["message"], found["level"], found["process"]) == (text, "warning", "server")
    assert found["time"].endswith("+00:00") and found["logger"] == "homenode.part"
    assert "request_id" not in found and "trace_id" not in found


def test_a_request_is_named_by_the_record_or_by_who_handles_it() -> None:
    token = set_request_mark(RequestMark("mine", "ab" * 16))
    try:
        found = line(record("x"))
        assert (found["request_id"], found["trace_id"]) == ("mine", "ab" * 16)
        assert line(record("x", request_id="another"))["request_id"] == "another"
    finally:
        reset_request_mark(token)
    assert "request_id" not in line(record("x"))


def test_an_http_request_has_its_values_as_fields() -> None:
    values = ("127.0.0.1:5", "POST", "/v1/completions", "1.1", 200)
    found = line(record('%s - "%s %s HTTP/%s" %d', *values, name="uvicorn.access"))
    assert (found["method"], found["path"], found["status"]) == ("POST", "/v1/completions", 200)
    assert "method" not in line(record("%s", "x", name="uvicorn.access"))


def test_what_is_no_record_of_a_logger_has_the_form_of_the_others() -> None:
    assert plain_line("lost", "server", "text") == "lost"
    assert json.loads(plain_line("lost", "server", "json"))["message"] == "lost"


_SAY = """
import logging, os, sys, threading, warnings
from homenode.logs.setup import begin_service_log
begin_service_log("server", None, {format!r})
logging.getLogger("homenode.part").info("one %s", "x")
warnings.warn("beware", stacklevel=1)
thread = threading.Thread(target=lambda: 1 / 0); thread.start(); thread.join()
print(os.environ.get("HOMENODE_LOG_FORMAT"))
raise ValueError("nobody takes this")
"""


@pytest.mark.parametrize(("format", "inherited"), [("json", None), (None, "json")])
def test_every_line_of_a_service_is_an_object_and_what_is_started_inherits_that(
    format: str | None, inherited: str | None
) -> None:
    kept = {name: value for name, value in os.environ.items() if name not in (LEVEL_VARIABLE, FORMAT_VARIABLE)}
    environment = kept | ({} if inherited is None else {FORMAT_VARIABLE: inherited})
    ran = subprocess.run(
        [sys.executable, "-c", _SAY.format(format=format)], capture_output=True, text=True, timeout=60, env=environment
    )
    found = [json.loads(text) for text in ran.stderr.splitlines()]
    assert ran.returncode == 1 and ran.stdout == "json\n"
    assert [each["level"] for each in found] == ["info", "warning", "critical", "critical"]
    assert "ZeroDivisionError" in found[2]["exception"] and "nobody takes this" in found[3]["exception"]
