"""Pages of HTML by themselves: one file that loads nothing, in the style of the server's own page.

    h("p", {"class": "help"}, "1 < 2")   ->   <p class="help">1 &lt; 2</p>

Text is always escaped; what is an element already is a `Markup`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from importlib import resources
from pathlib import Path

from homenode.errors import UserError

_EMPTY = frozenset({"meta", "br", "hr"})
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Child = str | None | Iterable["str | None"]


def h(name: str, attributes: Mapping[str, object] | None = None, *children: Child) -> Markup:
    """An element. Attributes that are None or False are left out; children that are None, too."""
    shown = "".join(_attribute(key, value) for key, value in (attributes or {}).items())
    if name in _EMPTY:
        return Markup(f"<{name}{shown}>")
    return Markup(f"<{name}{shown}>{''.join(map(_inside, _flat(children)))}</{name}>")


def html_page(title: str, *body: Child) -> str:
    """A whole document with the style of the server's page inside."""
    head = h(
        "head",
        {},
        h("meta", {"charset": "utf-8"}),
        h("title", {}, title),
        h("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        h("meta", {"http-equiv": "Content-Security-Policy", "content": _POLICY}),
        h("style", {}, Markup(_style())),
    )
    return f"<!doctype html>\n{h('html', {'lang': 'en'}, head, h('body', {'class': 'alone'}, h('main', {}, *body)))}\n"


def write_page(file: Path, text: str) -> None:
    """Write a document. Raises UserError where the file cannot be written."""
    try:
        file.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise UserError(f"cannot write {file}: {reason}", param="--html") from error


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    return f" {key}" if value is True else f' {key}="{escape(str(value), quote=True)}"'


def _flat(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if isinstance(child, str):
            yield child
        elif child is not None:
            yield from (each for each in child if each is not None)


def _inside(child: str) -> str:
    return child if isinstance(child, Markup) else escape(child, quote=False)


def _style() -> str:
    return resources.files("homenode.server.page").joinpath("static", "page.css").read_text("utf-8")
