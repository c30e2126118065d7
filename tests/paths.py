"""Where test inputs are. The data folder beside the repository is optional: what needs it skips without it."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
DATA = SHARED / "data"
STORIES = DATA / "stories260K"
STORIES_MIXTURE = DATA / "stories260K-moe4"  # the same model, each layer's MLP as four equal experts

needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason="needs the data folder ../shared/data, which this clone does not have"
)
