"""OLMo 2 beside transformers: norms after attention and MLP only, and one over all of q and of k."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from homenode.compute.ops import Backend
from tests.model.config_fields import check_fields
from tests.model.parity import Case, check_folder, check_gguf

pytestmark = pytest.mark.torch

CASE = Case("olmo2")
BIASED = Case("olmo2", {"attention_bias": True, "tie_word_embeddings": True, "rms_norm_eps": 1e-3})


@pytest.mark.parametrize("case", [CASE, BIASED], ids=["plain", "biased"])
def test_a_folder_has_the_tokens_of_transformers(case: Case, tmp_path: Path, backend: Backend) -> None:
    check_folder(case, tmp_path, backend)


def test_a_gguf_file_has_the_tokens_of_transformers(tmp_path: Path, backend: Backend) -> None:
    check_gguf(CASE, tmp_path, backend)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_field_is_read_as_transformers_reads_it_or_refused(tmp_path: Path) -> None:
    check_fields("olmo2", {}, tmp_path / "model")
