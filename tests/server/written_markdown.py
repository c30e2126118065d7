"""Markdown as models write it, and as nobody should: what is drawn of it, and what is never drawn."""

from __future__ import annotations

# Elements that nothing which a model writes may become, and the beginnings of all addresses that a link may have.
FORBIDDEN = {"script", "img", "iframe", "object", "embed", "link", "svg", "form", "style"}
LINKS = ("https://", "http://", "mailto:")

# The source, the names of all elements in their order, and the text.
DRAWN = [
    ("# One\n## Two", ["h2", "h3"], "OneTwo"),
    ("**bold** and *slanted* and ~~gone~~", ["p", "strong", "em", "s"], "bold and slanted and gone"),
    ("snake_case_name and 2 * 3 * 4", ["p"], "snake_case_name and 2 * 3 * 4"),
    ("`a < b`", ["p", "code"], "a < b"),
    ("- one\n- two\n  - three\n\n1. four", ["ul", "li", "li", "ul", "li", "ol", "li"], "onetwothreefour"),
    ("> quoted", ["blockquote", "p"], "quoted"),
    ("a\n\n---\n\nb", ["p", "hr", "p"], "ab"),
    ("https://example.org/x_y.", ["p", "a"], "https://example.org/x_y."),
    ("It costs $5 or $6.", ["p"], "It costs $5 or $6."),
    ("$x^2$", ["p", "math", "mrow", "msup", "mi", "mn"], "x2"),
    ("\\*no\\*", ["p"], "*no*"),
]

HOSTILE = [
    '<img src=x onerror="window.pwned=1"> <script>window.pwned=1</script>',
    "[click](javascript:window.pwned=1) [click](JaVaScRiPt:window.pwned=1) [x]( javascript:window.pwned=1)",
    "[x](data:text/html,<script>window.pwned=1</script>) [y](vbscript:x) [z](file:///etc/passwd)",
    '![x](https://example.org/leak.png) <https://example.org/a"onmouseover=window.pwned=1>',
    '```"><img src=x onerror=window.pwned=1>\n</code><script>window.pwned=1</script>\n```',
    "|<b onclick=window.pwned=1>a|b|\n|---|---|\n|<svg onload=window.pwned=1>|"
    "$\\text{<img src=x onerror=window.pwned=1>}$|",
    "$$\\frac{<script>}{\\href{javascript:window.pwned=1}{x}}$$",
    '[a](https://example.org/"onclick="window.pwned=1)',
    "&lt;script&gt; &#106;avascript:x",
    "*" * 400 + "a" + "_" * 400 + "[" * 3000 + "](" * 500 + "`" * 301 + "$" * 501,
    "> " * 200 + "deep\n" + "".join(f"{'  ' * at}- x\n" for at in range(80)),
    "$" + "{" * 3000 + "$ \\(" + "\\frac" * 2000 + "\\)",
    "|" * 2000 + "\n|" + "-|" * 1999,
    *(f"{begin}{' ' * 8_000}x`" for begin in ("#", "```", "- ", "> ", "|", "*a", "a\n    ", "$", "[a](")),
    "- a" + "\n" * 4_000 + "b",
    "*a" * 1500 + "_a" * 1500 + "[a](" * 900 + "<http" * 900,
]
