"""The page for operators shows lines, spans, figures and settings that there are."""

from __future__ import annotations

import json
import logging
import re

from homenode.logs.forms import JsonForm
from homenode.logs.request_mark import RequestMark, reset_request_mark, set_request_mark
from tests.paths import ROOT
from tests.pure.test_docs_pages import ALL_FLAGS, text_of
from tests.server.test_metrics import ALL, series_of

PAGE = text_of("observability")
PROMETHEUS_FLAGS = {"--enable-feature"}


def rows(heading: str) -> list[str]:
    """The first cells of the table under a heading."""
    part = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [line.split("|")[1] for line in part.splitlines() if line.startswith("| `")]


def test_the_line_of_the_log_is_one_that_is_written() -> None:
    shown = json.loads(re.search(r"```json\n(.*?)```", PAGE, re.DOTALL).group(1))  # type: ignore[union-attr]
    values = tuple(shown[name] for name in ("client", "method", "path", "http_version", "status"))
    record = logging.LogRecord("uvicorn.access", logging.INFO, "", 0, '%s - "%s %s HTTP/%s" %d', values, None)
    token = set_request_mark(RequestMark(shown["request_id"], shown["trace_id"]))
    try:
        made = json.loads(JsonForm("server").format(record))
    finally:
        reset_request_mark(token)
    assert {**made, "time": ""} == {**shown, "time": ""}
    named = {name for cell in rows("Logs") for name in re.findall(r"`(\w+)`", cell)}
    assert named == {*shown, "exception"}


def test_the_spans_are_those_that_are_made() -> None:
    sources = ("tracing/generation_spans.py", "proxy/forwarder.py")
    code = "".join((ROOT / "src/homenode/server" / name).read_text(encoding="utf-8") for name in sources)
    made = {*re.findall(r'(?:add_phase|begin_call)\(\s*"([\w ]+)"', code)}
    named = {name for cell in rows("Traces") for name in re.findall(r"`([^`]+)`", cell)}
    assert {name for name in named if not name.startswith("POST ")} == made
    facts = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/homenode/server").rglob("*.py"))
    for name in re.findall(r"`((?:http|gen_ai|homenode|error|service)\.[a-z_.]+)`", PAGE):
        assert f'"{name}"' in facts, name


def test_every_figure_and_setting_is_there() -> None:
    names = {name for row in ALL for name in series_of(row)}
    used = set(re.findall(r"homenode:\w+", PAGE))
    assert used and used <= names
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", PAGE)) <= ALL_FLAGS | PROMETHEUS_FLAGS
