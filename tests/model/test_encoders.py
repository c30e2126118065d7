"""Encoders beside transformers: rows after the last layer, and what pooling makes of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from homenode.compute.ops import Backend, FloatArray, StepArrays, StepLimits
from homenode.errors import UnsupportedError
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.weights.load import load_model
from homenode.model.weights.pooling_head import load_pooling_head
from tests.model.parity import Case, write_stacked_gguf
from tests.model.transformers_models import SIZES, prompts, quiet_and_on_one_thread

pytestmark = pytest.mark.torch


ALIKE = {"num_key_value_heads": 4, "pad_token_id": 0}
CASES = {
    "bert": Case("bert", ALIKE, {"attention.causal": False, "attention.layer_norm_epsilon": 1e-12}),
    "xlm_roberta": Case("xlm-roberta", ALIKE | {"pad_token_id": 1, "type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    "modernbert": Case(
        "modernbert",
        ALIKE | {"local_attention": 8, "num_hidden_layers": 4, "cls_token_id": 1, "sep_token_id": 2},
        {
            "attention.causal": False, "attention.layer_norm_epsilon": 1e-5, "attention.sliding_window": 8,
            "attention.sliding_window_pattern": 3, "rope.freq_base": 160000.0, "attention.head_count_kv": 4,
        },
        gguf_name="modern-bert",
        gguf_joined={"gate": "up"},
    ),
    "nomic_bert": Case(
        "nomic_bert",
        ALIKE,
        {"attention.causal": False, "attention.layer_norm_epsilon": 1e-12, "rope.freq_base": 1000.0},
        gguf_name="nomic-bert",
    ),
}  # fmt: skip
TEXTS = prompts((1, 5, 40, 130))
BOUND = 2e-5  # of the spread of rows


def make_encoder(case: Case, folder: Path, kind: str = "AutoModel", **more: Any) -> Any:
    """A toy of transformers with random weights, saved; `kind`: the class that makes it."""
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(case.kind, **{**SIZES, **case.changes, **more})
    torch.manual_seed(3)
    with quiet_and_on_one_thread(), torch.no_grad():
        model = getattr(transformers, kind).from_config(config, attn_implementation="eager").eval()
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if "norm" in name.lower():
                parameter.copy_(1 + 0.2 * noise if name.endswith("weight") else 0.3 * noise)
            else:
                parameter.copy_(noise * (0.3 if parameter.dim() == 1 else 1.5 / parameter.shape[-1] ** 0.5))
        model.save_pretrained(folder)
    return model


def rows_of(path: Path, backend: Backend, texts: list[list[int]]) -> list[FloatArray]:
    """Rows after the last layer, of texts computed in one step."""
    model = load_model(open_checkpoint(path), backend)
    blocks = [-(-len(text) // 32) for text in texts]
    cache = backend.kv_cache(model.kv_geometry(32, "f32"), sum(blocks))
    total = sum(map(len, texts))
    program = backend.compile(model.forward(cache), StepLimits(total, len(texts), total, max(blocks)))
    starts = np.cumsum([0, *map(len, texts)]).astype(np.int32)
    table = np.zeros((len(texts), max(blocks)), np.int32)
    for row, (count, first) in enumerate(zip(blocks, np.cumsum([0, *blocks]), strict=False)):
        table[row, :count] = np.arange(first, first + count)
    ids = np.array([token for text in texts for token in text], np.int32)
    positions = np.concatenate([np.arange(len(text), dtype=np.int32) for text in texts])
    lengths = np.array([len(text) for text in texts], np.int32)
    rows = np.array(program.run(StepArrays(ids, positions, starts, lengths, table, np.arange(total, dtype=np.int32))))
    return np.split(rows, starts[1:-1])


def hidden_of(theirs: Any, text: list[int]) -> FloatArray:
    import torch

    with torch.no_grad():
        return np.asarray(theirs(input_ids=torch.tensor([text])).last_hidden_state[0].numpy(), np.float32)


def near(found: FloatArray, wanted: FloatArray) -> None:
    assert np.abs(found - wanted).max() <= BOUND * np.ptp(wanted)


@pytest.mark.parametrize("name", CASES)
def test_a_folder_has_the_rows_of_transformers(name: str, tmp_path: Path, backend: Backend) -> None:
    theirs = make_encoder(CASES[name], tmp_path)
    for found, text in zip(rows_of(tmp_path, backend, TEXTS), TEXTS, strict=True):
        near(found, hidden_of(theirs, text))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.gguf_keys])
def test_a_gguf_file_has_the_rows_of_transformers(name: str, tmp_path: Path, reference: Backend) -> None:
    theirs = make_encoder(CASES[name], tmp_path)
    file = write_stacked_gguf(CASES[name], tmp_path, tmp_path / "model.gguf")
    for found, text in zip(rows_of(file, reference, TEXTS), TEXTS, strict=True):
        near(found, hidden_of(theirs, text))


@pytest.mark.parametrize("name", CASES)
def test_a_text_by_itself_has_the_same_bits(name: str, tmp_path: Path, backend: Backend) -> None:
    make_encoder(CASES[name], tmp_path)
    together = rows_of(tmp_path, backend, TEXTS)
    for found, text in zip(together, TEXTS, strict=True):
        assert np.array_equal(rows_of(tmp_path, backend, [text])[0], found)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("xlm_roberta", {"num_labels": 1}),
        ("modernbert", {"num_labels": 1, "classifier_pooling": "cls"}),
        ("bert", {"num_labels": 3}),
    ],
)
def test_the_head_of_a_model_that_scores(name: str, more: dict[str, Any], tmp_path: Path, reference: Backend) -> None:
    import torch

    theirs = make_encoder(CASES[name], tmp_path, "AutoModelForSequenceClassification", **more)
    checkpoint = open_checkpoint(tmp_path)
    pooling = checkpoint.spec.pooling
    assert pooling is not None and len(pooling.labels) == more["num_labels"] and pooling.rows == "cls"
    row = rows_of(tmp_path, reference, [TEXTS[2]])[0][0]
    for layer in load_pooling_head(checkpoint, pooling):
        row = layer.apply(row)
    with torch.no_grad():
        wanted = theirs(input_ids=torch.tensor([TEXTS[2]])).logits[0].numpy()
    np.testing.assert_allclose(row, wanted, rtol=1e-4, atol=1e-4)


def test_a_bert_that_scores_pairs_by_types_is_refused(tmp_path: Path) -> None:
    make_encoder(CASES["bert"], tmp_path, "AutoModelForSequenceClassification", num_labels=1)
    with pytest.raises(UnsupportedError, match="two types of tokens"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("bert", "position_embedding_type", "relative_key"),
        ("bert", "is_decoder", True),
        ("bert", "hidden_act", "mish"),
        ("modernbert", "norm_bias", True),
        ("modernbert", "hidden_activation", "silu"),
        ("nomic_bert", "prenorm", True),
        ("nomic_bert", "moe_every_n_layers", 2),
    ],
)
def test_what_changes_the_result_is_refused_by_name(name: str, field: str, value: object, tmp_path: Path) -> None:
    make_encoder(CASES[name], tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {field: value}))
    with pytest.raises(UnsupportedError, match=field):
        open_checkpoint(tmp_path)


# What transformers has as Gemma 3's text that sees what comes behind as well.
EMBEDDING_GEMMA = Case(
    "embedding_gemma",
    {
        "head_dim": 16, "num_hidden_layers": 3, "sliding_window": 8, "use_bidirectional_attention": True, "tie_word_embeddings": True,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "pad_token_id": 0,
    },
)  # fmt: skip


def test_a_folder_of_embedding_gemma_has_the_rows_of_transformers(tmp_path: Path, backend: Backend) -> None:
    theirs = make_encoder(replace(EMBEDDING_GEMMA, kind="gemma3_text"), tmp_path)
    for found, text in zip(rows_of(tmp_path, backend, TEXTS), TEXTS, strict=True):
        near(found, hidden_of(theirs, text))
