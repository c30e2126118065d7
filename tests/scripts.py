"""Texts in every script there is, for comparing what two tokenizers make of them."""

from __future__ import annotations

import random
import unicodedata
from functools import cache

BETWEEN = (" ", "  ", "\n", "\r\n ", "a", "Zz", "7", "2345", "'s", "'LL", "!", "_x", "/", "\u3000")


@cache
def settled_characters() -> dict[str, list[str]]:
    """Characters by the first word of their names, which mostly is the script. Only those that no version of Unicode
    moved to another category.
    """
    found: dict[str, list[str]] = {}
    for code in range(0x21, 0x20000):
        c = chr(code)
        category = unicodedata.category(c)
        if category[0] in "LMNPS" and unicodedata.ucd_3_2_0.category(c) == category:
            found.setdefault(unicodedata.name(c, "").split(" ")[0], []).append(c)
    return found


def texts_of_all_scripts(seed: str, between: tuple[str, ...] = BETWEEN) -> list[str]:
    """Texts for every script: its own characters among spaces, digits, signs and Latin words."""
    rng = random.Random(seed)
    return [
        "".join(rng.choice(characters) if rng.random() < 0.7 else rng.choice(between) for _ in range(30))
        for characters in settled_characters().values()
        for _ in range(2)
    ]
