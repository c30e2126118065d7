"""Sphinx configuration: Markdown pages, no generated boilerplate."""

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

project = "homenode"
author = "The homenode authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
exclude_patterns = ["_build"]
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing"]


def setup(app: Sphinx) -> None:
    """Show diagrams as their text, which code hosts draw, and queries, since the lexer there is knows no colon in the
    name of a metric.
    """
    app.add_lexer("mermaid", TextLexer)
    app.add_lexer("promql", TextLexer)
