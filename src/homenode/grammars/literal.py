"""Texts within grammars in Lark."""

from __future__ import annotations

import json


def lark_literal(text: str) -> str:
    """A text as it stands."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
