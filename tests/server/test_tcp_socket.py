"""Where a server listens by its host: both loopback addresses for localhost, brackets of URLs or not."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from homenode.errors import UserError
from homenode.server.doors.tcp_socket import bare_host, bind_tcp, with_twins


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as trial:
            trial.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="this host has no ::1")


@pytest.mark.parametrize(
    ("host", "bare"), [("[::1]", "::1"), ("::1", "::1"), ("localhost", "localhost"), ("10.0.0.1", "10.0.0.1")]
)
def test_brackets_belong_to_urls(host: str, bare: str) -> None:
    assert bare_host(host) == bare


@needs_ipv6
def test_localhost_is_reached_in_both_families() -> None:
    with closing(bind_tcp("localhost", 0)) as listener:
        listener.listen()
        port = listener.getsockname()[1]
        assert len(with_twins(listener)) == 2
        for address in ("127.0.0.1", "::1"):
            socket.create_connection((address, port), 5).close()
    with pytest.raises(ConnectionError):
        socket.create_connection(("::1", port), 5)


@needs_ipv6
@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_an_address_of_ipv6_is_one_socket(host: str) -> None:
    with closing(bind_tcp(host, 0)) as listener:
        assert listener.getsockname()[0] == "::1"
        assert with_twins(listener) == [listener]


@needs_ipv6
def test_a_port_that_is_taken_in_one_family_is_refused_by_name() -> None:
    with closing(bind_tcp("::1", 0)) as other:
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"cannot listen on localhost port {port}"):
            bind_tcp("localhost", port)
