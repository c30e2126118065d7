"""Settings of the proxy, and what of them cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from homenode.errors import UserError
from homenode.net.settings import NetConfig, contradiction, is_loopback
from homenode.options import option
from homenode.server.http.config import HttpConfig
from homenode.units import parse_seconds, parse_tokens


def server_urls(text: str) -> tuple[str, ...]:
    """The addresses `http://host:port` in `text`, separated by commas or blanks. Raises UserError for what is none."""
    return tuple(server_url(part) for part in str(text).replace(",", " ").split())


def server_url(text: str) -> str:
    """A server's address without a slash at its end. Raises UserError."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise UserError(f"{text!r} is not an address: {error}; write http://HOST:PORT") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(f"{text!r} is not a server's address; write http://HOST:PORT or https://HOST:PORT")
    if parts.username is not None or parts.query or parts.fragment or parts.path not in ("", "/"):
        raise UserError(
            f"{text!r}: give the server's address only, such as http://HOST:PORT, without user, path or query"
        )
    if port == 0 or any(c.isspace() or not c.isprintable() for c in text):
        raise UserError(f"{text!r} is not an address that can be reached; write http://HOST:PORT")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}" + ("" if port is None else f":{port}")


@dataclass(frozen=True)
class ProxyConfig(HttpConfig):
    """The servers that there are, and how long anything may take."""

    prefill: tuple[str, ...] = option(
        (), "Prefill servers (--pd-role sender), as http://HOST:PORT. Without any the decoders compute prompts.", parse=server_urls, metavar="URL..."
    )  # fmt: skip
    decode: tuple[str, ...] = option(
        (), "Decode servers (--pd-role receiver), as http://HOST:PORT.", parse=server_urls, metavar="URL..."
    )
    upstream_api_key: str | None = option(
        None, "Key sent to the servers as a Bearer token. Default: the client's own is passed on.", secret=True
    )
    peer_keys: str | None = option(
        None,
        "Folder with this host's key and certificate, as `homenode keys make` writes it: shown to servers at https, "
        "whose certificate has to be one that is pinned there. Default: the system's authorities say who they are.",
        metavar="DIR",
    )
    peer_plain_text: bool = option(
        False,
        "Servers on other hosts may be given as http: requests and answers are neither encrypted nor kept from being "
        "changed on their way.",
    )
    min_handover_tokens: int = option(
        0,
        "A prompt of which the decoder probably lacks fewer tokens is computed there (four bytes of text count as a "
        "token).",
        parse=parse_tokens,
        minimum=0,
    )
    prefill_tries: int = option(
        2, "Prefill servers that may fail a request before a decoder computes its prompt.", minimum=1, maximum=100
    )
    decode_tries: int = option(
        2, "Decode servers that may fail a request before its first byte.", minimum=1, maximum=100
    )
    connect_timeout: float = option(
        2.0, "How long a connection to a server may take.", parse=parse_seconds, minimum=0.01
    )
    prefill_timeout: float = option(
        600.0, "How long a prefill server may take for a prompt, queue included.", parse=parse_seconds, minimum=0.01
    )
    first_byte_timeout: float = option(
        600.0, "How long a decode server may take to begin a stream.", parse=parse_seconds, minimum=0.01
    )
    answer_timeout: float = option(
        3600.0,
        "How long a decode server may take for an answer that is not streamed.",
        parse=parse_seconds,
        minimum=0.01,
    )
    idle_timeout: float = option(
        60.0,
        "How long a stream may be silent, comments included, before it is given up.",
        parse=parse_seconds,
        minimum=0.01,
    )
    wait_timeout: float = option(
        10.0, "How long a request waits for a decode server while none is usable.", parse=parse_seconds, minimum=0
    )
    sse_keep_alive: float = option(
        2.0,
        "A stream whose answer has not begun yet gets its head after a second, and a comment line this often. "
        "0: neither.",
        parse=parse_seconds,
        minimum=0,
    )
    poll_interval: float = option(
        0.5, "Time between two looks at a server's health.", parse=parse_seconds, minimum=0.01
    )
    suspect_after: float = option(
        0.25,
        "A server that has answered a request with nothing for so long is looked at; one that leaves the look "
        "unanswered as long, as a frozen one does, gets no new requests, and those that wait at it go elsewhere. 0: "
        "they wait for --silent-after.",
        parse=parse_seconds,
        minimum=0,
    )
    silent_after: float = option(
        2.0,
        "A server that leaves a look unanswered so long gets no new requests, and prompts waiting at it go elsewhere.",
        parse=parse_seconds,
        minimum=0.05,
    )
    lost_after: float = option(
        10.0,
        "Answers of a decode server that has been silent so long are given up, or begun anew.",
        parse=parse_seconds,
        minimum=0.05,
    )
    breaker_failures: int = option(3, "Failures in a row after which a server is left alone.", minimum=1)
    breaker_pause: float = option(
        2.0,
        "How long it is left alone at first; doubled, up to 30 s, as long as its next request fails.",
        parse=parse_seconds,
        minimum=0.01,
    )
    release_timeout: float = option(
        2.0, "How long telling a server that a ticket is given up may take.", parse=parse_seconds, minimum=0.01
    )

    def __post_init__(self) -> None:
        """Raises UserError for a setting that cannot be."""
        super().__post_init__()
        if not self.decode:
            raise UserError(
                "--decode: no decode server is given; name at least one, such as --decode http://127.0.0.1:8001",
                param="decode",
            )
        seen: set[str] = set()
        for url in (*self.prefill, *self.decode):
            if url in seen:
                raise UserError(
                    f"{url} is given twice; each server is named once, as --prefill or as --decode", param="decode"
                )
            seen.add(url)
        self._require_private([*self.prefill, *self.decode])

    def _require_private(self, urls: Sequence[str]) -> None:
        """UserError where requests would leave this host in clear, and nobody said that they may."""
        if (problem := contradiction(NetConfig(self.peer_keys, self.peer_plain_text))) is not None:
            raise problem
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme == "http" and not self.peer_plain_text and not is_loopback(parts.hostname or ""):
                raise UserError(
                    f"{url} is on another host, and requests would go there in clear: write https://, with --peer-keys "
                    "for certificates of `homenode keys make`; or, where nobody else can hear the network, give "
                    "--peer-plain-text",
                    param="prefill" if url in self.prefill else "decode",
                )
