"""The names of GGUF files that hold the part of a model that sees images, and no whole model."""

from __future__ import annotations

MMPROJ_PATTERN = "*[mM][mM][pP][rR][oO][jJ]*"  # as of a shell: what `is_mmproj` says


def is_mmproj(name: str) -> bool:
    """Return whether a file of this name, without its folder, is one."""
    return "mmproj" in name.lower()
