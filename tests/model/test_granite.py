"""Granite beside transformers: the four multipliers, in config.json and in GGUF files."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from homenode.compute.ops import Backend
from homenode.model.checkpoint.index import open_checkpoint
from tests.model.config_fields import check_fields
from tests.model.parity import Case, check_folder, check_gguf, write_gguf
from tests.model.transformers_models import make_model

pytestmark = pytest.mark.torch

MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.11,
    "residual_multiplier": 0.4,
    "logits_scaling": 0.6,
}
CASE = Case("granite", MULTIPLIERS, interleaved=True)
BIASED = Case("granite", MULTIPLIERS | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True})


@pytest.mark.parametrize("case", [CASE, BIASED], ids=["plain", "biased"])
def test_a_folder_has_the_tokens_of_transformers(case: Case, tmp_path: Path, backend: Backend) -> None:
    check_folder(case, tmp_path, backend)


def test_a_gguf_file_has_the_tokens_of_transformers(tmp_path: Path, backend: Backend) -> None:
    check_gguf(CASE, tmp_path, backend)


@pytest.mark.parametrize("rope", [True, False])
def test_a_gguf_file_says_whether_there_is_rope(rope: bool, tmp_path: Path) -> None:
    case = Case("granite", gguf_keys={"rope.scaling.finetuned": rope}, interleaved=True)
    spec = open_checkpoint(write_gguf(case, make_model("granite", {}, tmp_path), tmp_path / "model.gguf")).spec
    assert (spec.residual_scale, spec.logits_scale) == (1.0, 1.0) and all(
        spec.has_rope(layer) is rope for layer in range(3)
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_field_is_read_as_transformers_reads_it_or_refused(tmp_path: Path) -> None:
    check_fields("granite", MULTIPLIERS, tmp_path / "model")
