"""Sphinx configuration: Markdown pages, no generated boilerplate."""

project = "homenode"
author = "The homenode authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
exclude_patterns = ["_build"]
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing"]
