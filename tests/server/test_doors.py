"""TLS, unix sockets, pages of other sites, and the path before a reverse proxy."""

from __future__ import annotations

import asyncio
import http.client
import shutil
import socket
import ssl
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from homenode.errors import UserError
from homenode.net.keys import AUTHORITY, CERTIFICATE, KEY, PEERS, KeyFolder
from homenode.net.make_keys import make_keys
from homenode.server.doors.certificate import read_certificate
from homenode.server.doors.setting_values import parse_origins, parse_permissions, parse_root_path
from homenode.server.doors.unix_socket import UnixListener, remove_socket_file
from homenode.server.http.config import ServerConfig
from homenode.server.http.listener import bind, url_of
from homenode.server.proxy.config import ProxyConfig
from homenode.server.proxy.upstreams import Upstream, UpstreamError
from tests.server.conftest import Running, Start
from tests.waiting import wait_until

APP, EVIL = "https://app.example", "https://evil.example"
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with")


# Pages of other sites


@pytest.fixture(scope="module")
def web(start: Start) -> Running:
    return start(allowed_origins=(APP, "https://other.example"), root_path="/llm", api_key=("secret",))


def preflight(server: Running, origin: str, **headers: str) -> httpx.Response:
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST", **headers}
    return server.http.request("OPTIONS", "/v1/chat/completions", headers=asked)


def test_a_preflight_needs_no_key(web: Running) -> None:
    names = "authorization,content-type,x-stainless-lang"
    answer = preflight(web, APP, **{"Access-Control-Request-Headers": names})
    assert answer.status_code == 204 and not answer.content
    assert answer.headers["access-control-allow-origin"] == APP and "Origin" in answer.headers["vary"]
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-headers"] == names
    assert "access-control-allow-headers" not in preflight(web, APP).headers


def test_a_strange_origin_gets_nothing(web: Running) -> None:
    answer = preflight(web, EVIL)
    assert answer.status_code in (401, 405) and "access-control-allow-origin" not in answer.headers
    for origin in (EVIL, f"{APP}.evil.example", "null", "http://app.example"):
        got = web.http.get("/v1/models", headers={"Origin": origin, "x-api-key": "secret"})
        assert got.status_code == 200 and "access-control-allow-origin" not in got.headers


@pytest.mark.parametrize(
    ("body", "status"),
    [({}, 200), ({"max_tokens": -2}, 400), ({"stream": True}, 200), ({"model": "none"}, 404)],
)
def test_answers_refusals_and_streams_name_the_origin(web: Running, body: dict[str, Any], status: int) -> None:
    headers = {"Origin": APP, "x-api-key": "secret"}
    got = web.http.post("/v1/completions", json={"prompt": "hi", "max_tokens": 2, **body}, headers=headers)
    assert got.status_code == status and got.headers["access-control-allow-origin"] == APP
    assert "x-request-id" in got.headers["access-control-expose-headers"]
    got = web.http.post("/v1/completions", json={}, headers={"Origin": APP})
    assert got.status_code == 401 and got.headers["access-control-allow-origin"] == APP


def test_every_page(start: Start) -> None:
    server = start(allowed_origins=("*",))
    assert preflight(server, EVIL).headers["access-control-allow-origin"] == "*"
    assert server.http.get("/v1/models", headers={"Origin": "null"}).headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-origin" not in server.http.get("/v1/models").headers


def test_without_the_setting_no_page_may_ask(server: Running) -> None:
    assert preflight(server, APP).status_code == 405
    assert "access-control-allow-origin" not in server.http.get("/v1/models", headers={"Origin": APP}).headers


# The path before a reverse proxy


def test_paths_come_with_the_root_path_or_without(web: Running) -> None:
    key = {"x-api-key": "secret"}
    for path in ("/v1/models", "/llm/v1/models", "/llm/openapi.json"):
        assert web.http.get(path, headers=key).status_code == 200
        assert web.http.get(path).status_code == 401
    for path in ("/llmv1/models", "/llm/llm/v1/models", "/llm/none"):
        assert web.http.get(path, headers=key).status_code == 404
    assert web.http.get("/llm/health").status_code == 200
    assert web.http.get("/openapi.json", headers=key).json()["servers"] == [{"url": "/llm"}]


def test_values_of_the_settings() -> None:
    assert parse_root_path("/llm/") == "/llm" and parse_root_path("/") == parse_root_path("") == ""
    assert parse_origins("https://App.example/, http://localhost:3000,*") == (
        "https://app.example",
        "http://localhost:3000",
        "*",
    )
    assert parse_permissions("660") == "660" and parse_permissions("0600") == "0600"
    for parse, texts in (
        (parse_root_path, ("llm", "//x", "/a b", "/a?b", "/../x")),
        (parse_origins, ("", "app.example", "https://a/b", "https://a:x")),
        (parse_permissions, ("", "rw", "888", "1777")),
    ):
        for text in texts:
            with pytest.raises(UserError):
                parse(text)


def test_settings_that_contradict_each_other() -> None:
    for settings, said in (
        ({"ssl_certfile": "a.pem"}, "--ssl-keyfile"),
        ({"ssl_keyfile": "a.key"}, "--ssl-certfile"),
        ({"ssl_ca_certs": "a.pem"}, "--ssl-certfile"),
        ({"uds": "/tmp/x", "port": 1}, "--uds"),
    ):
        with pytest.raises(UserError, match=said):
            ServerConfig(**settings)  # type: ignore[arg-type]
        with pytest.raises(UserError, match=said):
            ProxyConfig(decode=("http://127.0.0.1:1",), **settings)  # type: ignore[arg-type]


# Unix sockets


def test_a_unix_socket_answers_and_is_gone_at_the_end(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "homenode.sock"
    server = start(uds=str(path), port=8000)
    assert server.url == f"http+unix://{path}" and stat.S_IMODE(path.stat().st_mode) == 0o600
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://x") as client:
        assert client.get("/health").status_code == 200
        got = client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 3})
        assert got.json()["usage"]["completion_tokens"] == 3
    with socket.socket(socket.AF_UNIX) as half:  # it closes its sending side, and waits for the answer
        half.settimeout(20)
        half.connect(str(path))
        half.sendall(b"GET /v1/models HTTP/1.0\r\n\r\n")
        half.shutdown(socket.SHUT_WR)
        assert half.recv(100).startswith(b"HTTP/1.1 200")
    server.call(lambda: server.client.on_engine_lost("the end"))
    wait_until(lambda: not path.exists())


def test_permissions_and_what_lies_there_already(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    config = ServerConfig(uds=str(path), uds_permissions="660")
    with bind(config) as first:
        assert stat.S_IMODE(path.stat().st_mode) == 0o660 and url_of(first) == f"http+unix://{path}"
        first.listen()
        with pytest.raises(UserError, match="another server"):
            bind(config)
    assert path.exists()  # as after a kill
    second = bind(config)
    with second:
        remove_socket_file(first)  # it is another one's now
        assert path.exists()
    remove_socket_file(second)
    assert not path.exists()
    path.write_text("a file")
    with pytest.raises(UserError, match="no socket"):
        bind(config)
    assert path.read_text() == "a file"
    for wrong in (tmp_path / "none" / "a.sock", tmp_path / ("x" * 200)):
        with pytest.raises(UserError, match="--uds"):
            UnixListener(str(wrong), 0o600)


# TLS


def certificate(folder: Path, name: str) -> tuple[str, str]:
    key, crt = folder / f"{name}.key", folder / f"{name}.crt"
    subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run(
        [*command, "-days", "2", "-keyout", str(key), "-out", str(crt), *subject], check=True, capture_output=True
    )
    return str(crt), str(key)


def connected(url: str, authority: str) -> http.client.HTTPSConnection:
    context = ssl.create_default_context(cafile=authority)
    host, port = url.removeprefix("https://").split(":")
    return http.client.HTTPSConnection(host, int(port), timeout=20, context=context)


def get(connection: http.client.HTTPSConnection, path: str = "/health") -> int:
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    return answer.status


@needs_openssl
def test_tls_takes_a_new_certificate_and_keeps_its_connections(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (crt, key), (crt2, key2) = certificate(tmp_path, "first"), certificate(tmp_path, "second")
    live = tmp_path / "live.crt", tmp_path / "live.key"
    shutil.copy(crt, live[0]), shutil.copy(key, live[1])
    server = start(ssl_certfile=str(live[0]), ssl_keyfile=str(live[1]))
    assert server.url.startswith("https://")
    old = connected(server.url, crt)
    assert get(old) == 200
    with pytest.raises(httpx.TransportError):
        httpx.get(server.url.replace("https", "http") + "/health", timeout=20)
    shutil.copy(crt2, live[0])  # a certificate without its key: not taken
    wait_until(lambda: "is not the key" in caplog.text)
    assert get(connected(server.url, crt)) == 200
    shutil.copy(key2, live[1])

    def takes_the_second() -> bool:
        try:
            return get(connected(server.url, crt2)) == 200
        except ssl.SSLError:
            return False

    wait_until(takes_the_second, every_s=0.05)
    assert get(old) == 200  # the connection of before
    body = b'{"prompt": "hi", "max_tokens": 200, "stream": true, "ignore_eos": true}'
    stream = connected(server.url, crt2)
    stream.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    text = stream.getresponse().read()
    assert text.rstrip().endswith(b"data: [DONE]") and text.count(b"data: ") > 100


@needs_openssl
def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (crt, key), (_, other) = certificate(tmp_path, "first"), certificate(tmp_path, "second")
    read_certificate(crt, key)
    empty, broken = tmp_path / "empty.pem", tmp_path / "broken.pem"
    empty.write_text("")
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    sealed = tmp_path / "sealed.key"
    subprocess.run(
        ["openssl", "pkey", "-in", key, "-out", str(sealed), "-aes256", "-passout", "pass:x"],
        check=True,
        capture_output=True,
    )
    for certfile, keyfile, flag, named, said in (
        (crt, other, "ssl_keyfile", other, "is not the key of"),
        (crt, str(tmp_path / "none"), "ssl_keyfile", "none", "cannot be read"),
        (str(tmp_path / "none"), key, "ssl_certfile", "none", "cannot be read"),
        (str(empty), key, "ssl_certfile", "empty.pem", "no certificate"),
        (str(broken), key, "ssl_certfile", "broken.pem", "cannot be used"),
        (crt, crt, "ssl_keyfile", crt, "no private key"),
        (crt, str(sealed), "ssl_keyfile", "sealed.key", "encrypted"),
        (crt, str(tmp_path), "ssl_keyfile", str(tmp_path), "no regular file"),
    ):
        with pytest.raises(UserError) as raised:
            read_certificate(certfile, keyfile)
        assert raised.value.param == flag and named in raised.value.message and said in raised.value.message


def test_only_clients_with_a_certificate_are_answered_and_only_pinned_servers_are_asked(
    start: Start, tmp_path: Path
) -> None:
    make_keys(tmp_path / "k", ["server", "proxy"], 30)
    make_keys(tmp_path / "others", ["server", "proxy"], 30)
    here = tmp_path / "k" / "server"
    server = start(
        ssl_certfile=str(here / CERTIFICATE), ssl_keyfile=str(here / KEY), ssl_ca_certs=str(here / AUTHORITY)
    )

    def asked_by(folder: Path | None) -> int:
        context = ssl._create_unverified_context()
        if folder is not None:
            context = KeyFolder(folder).context(connects=True, protocol="http/1.1")
        with httpx.Client(verify=context, trust_env=False) as client:
            return client.get(f"{server.url}/health").status_code

    async def asked_by_a_proxy(folder: Path) -> int:
        upstream = Upstream(server.url, ProxyConfig(decode=(server.url,), peer_keys=str(folder)))
        try:
            return (await upstream.ask("GET", "/health", {})).status
        finally:
            await upstream.close()

    assert asked_by(tmp_path / "k" / "proxy") == asyncio.run(asked_by_a_proxy(tmp_path / "k" / "proxy")) == 200
    with pytest.raises(httpx.HTTPError):
        asked_by(None)  # without a certificate
    with pytest.raises(httpx.HTTPError):
        asked_by(tmp_path / "others" / "proxy")  # another authority's
    (tmp_path / "k" / "proxy" / PEERS).write_text(f"sha256:{'0' * 64} another\n")
    with pytest.raises(httpx.HTTPError, match="none of those in"):
        asked_by(tmp_path / "k" / "proxy")
    with pytest.raises(UpstreamError, match="none of those in"):
        asyncio.run(asked_by_a_proxy(tmp_path / "k" / "proxy"))
    spoilt = tmp_path / "no-authority.pem"
    spoilt.write_text("nothing")
    with pytest.raises(UserError, match="--ssl-ca-certs"):
        read_certificate(str(here / CERTIFICATE), str(here / KEY), str(spoilt))


@pytest.mark.parametrize(
    ("url", "settings", "words"),
    [
        ("http://10.1.2.3:8000", {}, "in clear"),
        ("http://prefill.example:8000", {"peer_keys": "folder"}, "in clear"),
        ("http://127.0.0.1:8000", {"peer_keys": "folder", "peer_plain_text": True}, "together"),
    ],
)
def test_a_proxy_asks_other_hosts_in_clear_only_where_it_is_said(
    url: str, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        ProxyConfig(decode=(url,), **settings)
    for allowed in ({"peer_plain_text": True}, {}):
        ProxyConfig(decode=("http://localhost:8000", "https://10.1.2.3:8000"), **allowed)  # type: ignore[arg-type]
    assert ProxyConfig(decode=("http://10.1.2.3:8000",), peer_plain_text=True).decode


@needs_openssl
def test_a_client_that_does_not_shake_hands_keeps_nobody_waiting(start: Start, tmp_path: Path) -> None:
    crt, key = certificate(tmp_path, "first")
    server = start(ssl_certfile=crt, ssl_keyfile=key, request_read_timeout=1.0)
    host, port = server.url.removeprefix("https://").split(":")
    silent = [socket.create_connection((host, int(port)), timeout=20) for _ in range(20)]
    assert get(connected(server.url, crt)) == 200
    assert silent[0].recv(1) == b""  # closed after a second
    for each in silent:
        each.close()


@needs_openssl
def test_a_client_that_reads_slowly_gets_all(start: Start, tmp_path: Path) -> None:
    crt, key = certificate(tmp_path, "first")
    server = start(ssl_certfile=crt, ssl_keyfile=key, write_timeout=1.0)
    connection = connected(server.url, crt)
    connection.connect()
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.request(
        "POST", "/tokenize", b'{"prompt": "' + b"x" * 40_000 + b'"}', {"Content-Type": "application/json"}
    )
    answer, parts = connection.getresponse(), []
    while part := answer.read(20_000):
        parts.append(part)
        time.sleep(0.05)
    assert len(b"".join(parts)) > 120_000


def test_what_only_looks_is_answered_without_a_key(web: Running) -> None:
    assert web.http.get("/livez").status_code == 200
    for path, methods in (("/", "GET, HEAD, OPTIONS"), ("/v1/chat/completions", "OPTIONS, POST")):
        answer = web.http.options(path)
        assert (answer.status_code, answer.headers["allow"]) == (204, methods)
    assert web.http.options("/v1/nothing").status_code == 404
