"""Skips what needs torch where it is not installed."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs torch, which the extra `torch` installs")
