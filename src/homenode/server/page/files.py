"""The files of pages: served from memory, compressed, to whoever asks; nothing of the server is in them.

The page of a server is at `/` for those who take HTML, its files are below `/page/VERSION/`. That of its API is at
`/docs`, with files below `/docs/VERSION/`. Their addresses are relative, so that they are found below whatever path a
reverse proxy shows the server at. The version is of their content: a browser keeps them and never asks again, and the
page itself, which names the version, is sent anew each time. So no answer is a 304, which some proxies between get
wrong, and a page never runs with files of another version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from homenode import __version__
from homenode.server.http.config import HttpConfig

FOLDER = "/page/"
REFERENCE = "/docs"  # the page of the API; its files are below
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_PAGE = "index.html"
_BASE = "<head>"  # behind which the page's own place is told, where it has another one than `/`
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "form-action 'none'; frame-ancestors 'none'; base-uri {base}"
)
_ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_ASK_ANEW = "no-cache"
_KEEP = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class _File:
    """A file as it is sent, plain and packed."""

    kind: str
    plain: bytes
    packed: bytes

    @classmethod
    def of(cls, name: str, content: bytes) -> _File:
        import gzip  # not imported before somebody asks for the page: no start waits for it

        return cls(_KINDS[name[name.rindex(".") :]], content, gzip.compress(content, 9, mtime=0))

    def response(self, asked: Headers, more: Mapping[str, str]) -> Response:
        headers = {**_ALWAYS, **more}
        if not takes_gzip(asked):
            return Response(self.plain, headers=headers, media_type=self.kind)
        return Response(self.packed, headers={**headers, "Content-Encoding": "gzip"}, media_type=self.kind)


class PageFiles:
    """The files of a page as a server shows it at the path `root`, empty for one of its own. `place`: what the page
    calls their folder, `folder`: where they lie in the package. `version`: the folder below `place`.
    """

    def __init__(self, root: str = "", place: str = FOLDER, folder: str = "static") -> None:
        contents = dict(_contents(folder))
        self.version = _version(contents)
        page = contents[_PAGE].decode().replace(f'="{place[1:]}', f'="{place[1:]}{self.version}/')
        if root:
            from html import escape

            page = page.replace(_BASE, f'{_BASE}<base href="{escape(root, quote=True)}/">', 1)
        contents[_PAGE] = page.encode()
        self._files = {name: _File.of(name, content) for name, content in contents.items()}
        self._policy = _POLICY.format(base="'self'" if root else "'none'")

    @property
    def names(self) -> Sequence[str]:
        """Return the names of the files besides the page itself."""
        return [name for name in self._files if name != _PAGE]

    def page(self, request: Request) -> Response:
        """The page itself."""
        own = {
            "Content-Security-Policy": self._policy,
            "Vary": "Accept, Accept-Encoding",
            "Cache-Control": _ASK_ANEW,
        }
        return self._files[_PAGE].response(request.headers, own)

    def file(self, version: str, name: str, request: Request) -> Response | None:
        """The file of this name; None where there is none of this version."""
        if version != self.version or name not in self.names:
            return None
        return self._files[name].response(request.headers, {"Vary": "Accept-Encoding", "Cache-Control": _KEEP})


def page_at_root(config: HttpConfig, request: Request) -> Response | None:
    """What a browser gets at `/`: the page, or where there is none that the server runs; None for programs."""
    if not _takes_page(request):
        return None
    return page_files(config.root_path).page(request) if config.ui else running()


def running() -> Response:
    """The answer at `/` for whoever looks whether somebody is there, as clients do with HEAD."""
    return Response(f"homenode {__version__} is running; /openapi.json lists what there is\n", media_type="text/plain")


def _takes_page(request: Request) -> bool:
    """Return whether a request for `/` comes from a browser, which names HTML; whoever takes anything is a program."""
    kinds = (part.partition(";")[0].strip().lower() for part in request.headers.get("accept", "").split(","))
    return request.method in ("GET", "HEAD") and any(kind in ("text/html", "application/xhtml+xml") for kind in kinds)


def is_open(request: Request) -> bool:
    """Return whether a request is for the page or a file of it, which have nothing to hide behind a key."""
    path: str = request.scope["path"]
    return path.startswith(FOLDER) or (path == "/" and _takes_page(request)) or is_reference(request)


def is_reference(request: Request) -> bool:
    """Return whether a request is for the page of the API or a file of it, as `is_open`."""
    path: str = request.scope["path"]
    return path == REFERENCE or path.startswith(f"{REFERENCE}/")


def takes_gzip(asked: Headers) -> bool:
    """Return whether a client unpacks answers that are packed by gzip."""
    codings = [part.replace(" ", "").lower() for part in asked.get("accept-encoding", "").split(",")]
    return any(coding == "gzip" or (coding.startswith("gzip;") and not _refused(coding)) for coding in codings)


def _refused(coding: str) -> bool:
    return coding.partition("q=")[2] in ("0", "0.0", "0.00", "0.000")


@cache
def page_files(root: str) -> PageFiles:
    """The files for servers that are shown at the path `root`, read and packed when somebody asks first."""
    return PageFiles(root)


@cache
def reference_files(root: str) -> PageFiles:
    """The same of the page of the API."""
    return PageFiles(root, f"{REFERENCE}/", "reference")


def _version(contents: Mapping[str, bytes]) -> str:
    """Return a word that changes with any of the files."""
    import hashlib  # as late as gzip

    digest = hashlib.sha256()
    for name, content in contents.items():
        digest.update(f"{name} {len(content)} ".encode() + content)
    return digest.hexdigest()[:16]


@cache
def _contents(folder: str) -> tuple[tuple[str, bytes], ...]:
    return tuple(_read_all(folder))


def _read_all(folder: str) -> Iterator[tuple[str, bytes]]:
    from importlib import resources

    for file in sorted(resources.files(__package__).joinpath(folder).iterdir(), key=lambda each: each.name):
        if file.name[file.name.rfind(".") :] in _KINDS:
            yield file.name, file.read_bytes()
