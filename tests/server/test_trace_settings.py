"""Traces are of an address that can be one, and of packages that are there; without the setting nothing is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from homenode.errors import UserError
from homenode.server.tracing.endpoint import parse_endpoint
from homenode.server.tracing.trace_parent import trace_id_of

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("http://collector:4318/", "http://collector:4318/v1/traces"),
        ("https://collector/some/path", "https://collector/some/path"),
    ],
)
def test_an_address_without_a_path_gets_the_usual_one(given: str, taken: str) -> None:
    assert parse_endpoint(given) == taken


@pytest.mark.parametrize("given", ["", "collector:4317", "grpc://collector:4317", "http://", "http://[", "http://x:0"])
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(UserError, match="no address of a collector"):
        parse_endpoint(given)


@pytest.mark.parametrize(
    "given",
    [
        "http://user:secret@host:4318",
        "https://secret@host",
        "http://:secret@host/v1",
        "user:secret@host",
        "http://secret@[",
    ],
)
def test_an_address_with_credentials_is_refused_and_not_repeated(given: str) -> None:
    with pytest.raises(UserError, match="OTEL_EXPORTER_OTLP_HEADERS") as refused:
        parse_endpoint(given)
    assert "secret" not in str(refused.value)


def test_an_at_sign_in_a_path_is_no_credential() -> None:
    assert parse_endpoint("http://host/a@b") == "http://host/a@b"


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (f"00-{TRACE}-{SPAN}-01", TRACE),
        (f" 00-{TRACE}-{SPAN}-00 ", TRACE),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", TRACE),
        (f"00-{TRACE}-{SPAN}-01-more", ""),
        (f"ff-{TRACE}-{SPAN}-01", ""),
        (f"00-{'0' * 32}-{SPAN}-01", ""),
        (f"00-{TRACE}-{'0' * 16}-01", ""),
        (f"00-{TRACE.upper()}-{SPAN}-01", ""),
        ("", ""),
        ("x" * 5000, ""),
    ],
)
def test_a_trace_is_named_by_a_header_that_is_one(header: str, found: str) -> None:
    assert trace_id_of(header) == found


def test_nothing_of_opentelemetry_is_imported_unasked_and_its_lack_is_an_error(tmp_path: Path) -> None:
    broken = tmp_path / "opentelemetry"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('not here')\n", encoding="utf-8")
    script = """
import sys
import homenode.server.app, homenode.server.proxy.app
from homenode.errors import UserError
from homenode.server.tracing.endpoint import check_packages
assert "opentelemetry" not in sys.modules
try:
    check_packages("http://x/v1/traces")
except UserError as error:
    print(error.message)
"""
    ran = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PYTHONPATH": ":".join([str(tmp_path), *sys.path])},
    )
    assert "pip install" in ran.stdout and "opentelemetry-sdk" in ran.stdout and "not here" in ran.stdout
