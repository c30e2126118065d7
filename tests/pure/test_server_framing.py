"""Requests whose end can be read in two ways, other versions of HTTP and absolute targets: held against RFC 9112 by
properties and tables.
"""

from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from homenode.server.http.framing import LARGEST_HEAD, StrictConnection


def first_event(head: bytes) -> tuple[h11.Event | None, int]:
    """The first event, or None and the status of the refusal."""
    connection = StrictConnection()
    connection.receive_data(head)
    try:
        event = connection.next_event()
    except h11.RemoteProtocolError:
        assert connection.problem is not None
        return None, connection.problem.error_status_hint
    assert isinstance(event, h11.Request)
    return event, 200


def head_of(*headers: tuple[str, str], version: str = "HTTP/1.1", target: str = "/x", method: str = "POST") -> bytes:
    lines = [f"{method} {target} {version}", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


_NAMES = st.sampled_from(["content-length", "Content-Length", "CONTENT-LENGTH"])
_LENGTH = st.tuples(_NAMES, st.integers(0, 10**6).map(str))
_CHUNKED = st.tuples(
    st.sampled_from(["Transfer-Encoding", "transfer-encoding", "TRANSFER-ENCODING"]), st.just("chunked")
)
_OTHERS = st.lists(st.tuples(st.sampled_from(["Accept", "X-A", "User-Agent"]), st.text("abc ", max_size=5)), max_size=4)


@given(_LENGTH, _CHUNKED, _OTHERS, st.randoms())
def test_two_ends_are_refused_wherever_the_headers_stand(
    length: tuple[str, str], chunked: tuple[str, str], others: list[tuple[str, str]], order: object
) -> None:
    headers = [("Host", "x"), length, chunked, *((name, value.strip()) for name, value in others)]
    order.shuffle(headers)  # type: ignore[attr-defined]
    assert first_event(head_of(*headers)) == (None, 400)
    for left_out in (length, chunked):
        event, status = first_event(head_of(*(header for header in headers if header is not left_out)))
        assert status == 200 and event is not None


@pytest.mark.parametrize("major", range(10))
@pytest.mark.parametrize("minor", [0, 1, 2, 9])
def test_versions(major: int, minor: int) -> None:
    _, status = first_event(head_of(("Host", "x"), version=f"HTTP/{major}.{minor}"))
    assert status == (200 if major == 1 else 505)


def test_no_transfer_encoding_in_http_1_0() -> None:
    assert first_event(head_of(("Transfer-Encoding", "chunked"), version="HTTP/1.0"))[1] == 400
    assert first_event(head_of(("Content-Length", "3"), version="HTTP/1.0"))[1] == 200


def test_a_head_that_is_too_large_or_coded_otherwise_has_a_status_of_its_own() -> None:
    connection = StrictConnection()
    connection.receive_data(b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"x" * LARGEST_HEAD)
    with pytest.raises(h11.RemoteProtocolError):
        connection.next_event()
    assert connection.problem is not None and connection.problem.error_status_hint == 431
    assert first_event(head_of(("Host", "x"), ("Transfer-Encoding", "gzip")))[1] == 501


@pytest.mark.parametrize(
    ("method", "target", "origin", "host"),
    [
        ("GET", "http://a.example/version", "/version", "a.example"),
        ("GET", "HTTP://a:8000/v1/models?x=1", "/v1/models?x=1", "a:8000"),
        ("POST", "https://user:secret@a/x", "/x", "a"),
        ("GET", "http://[::1]:80", "/", "[::1]:80"),
        ("OPTIONS", "http://a", "*", "a"),
        ("GET", "/http://a/b", "/http://a/b", "given"),
        ("OPTIONS", "*", "*", "given"),
    ],
)
def test_absolute_targets(method: str, target: str, origin: str, host: str) -> None:
    event, _ = first_event(head_of(("Host", "given"), ("A", "b"), method=method, target=target))
    assert isinstance(event, h11.Request) and event.target == origin.encode()
    assert [value for name, value in event.headers if name == b"host"] == [host.encode()]
    assert (b"a", b"b") in list(event.headers)


def test_a_target_that_is_no_url_is_refused() -> None:
    assert first_event(head_of(("Host", "x"), target="http://[::1/x"))[1] == 400
