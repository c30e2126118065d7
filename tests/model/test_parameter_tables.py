"""What a checkpoint lacks, adds or misshapes is said by name, before any weight is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from homenode.compute.ops import Backend
from homenode.dtypes import BY_NAME, DType
from homenode.errors import CheckpointError, UnsupportedError, UserError
from homenode.model.architectures.registry import ARCHITECTURES
from homenode.model.spec import RopeSpec
from homenode.model.weights.load import load_model
from tests.model.toys import ArrayCheckpoint, array_checkpoint, toy_arrays, toy_spec

Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def checkpoint(tmp_path: Path) -> ArrayCheckpoint:
    spec = toy_spec()
    checkpoint = array_checkpoint(tmp_path / "weights", spec, toy_arrays(spec))
    checkpoint.path.unlink()  # whoever reads a weight fails
    return checkpoint


def test_missing_tensors_are_named(checkpoint: ArrayCheckpoint, reference: Backend) -> None:
    del checkpoint.tensors[Q]
    with pytest.raises(
        CheckpointError, match=r"tensor model\.layers\.1\.self_attn\.q_proj\.weight is missing.*2 layers"
    ):
        load_model(checkpoint, reference)


def test_unknown_tensors_are_named(checkpoint: ArrayCheckpoint, reference: Backend) -> None:
    checkpoint.add("model.layers.0.self_attn.q_proj.bias", bytes(96 * 4), BY_NAME["F32"], (96,))
    with pytest.raises(
        CheckpointError, match=r"tensor model\.layers\.0\.self_attn\.q_proj\.bias is not part of a llama model"
    ):
        load_model(checkpoint, reference)


def test_many_unknown_tensors_are_counted(checkpoint: ArrayCheckpoint, reference: Backend) -> None:
    for i in range(9):
        checkpoint.add(f"vision.{i}", bytes(4), BY_NAME["F32"], (1,))
    with pytest.raises(CheckpointError, match=r"tensors vision\.0, .*vision\.4 and 4 more are not part"):
        load_model(checkpoint, reference)


@pytest.mark.parametrize("shape", [(64, 96), (96, 63), (96,), (96, 64, 1)])
def test_wrong_shapes_show_both(checkpoint: ArrayCheckpoint, reference: Backend, shape: tuple[int, ...]) -> None:
    checkpoint.tensors[Q] = replace(checkpoint.tensors[Q], shape=shape)
    with pytest.raises(CheckpointError) as caught:
        load_model(checkpoint, reference)
    assert str(list(shape)) in caught.value.message and "[96, 64] (query x hidden)" in caught.value.message
    assert caught.value.facts == {"tensor": Q, "seen": shape, "wanted": (96, 64)}


def test_byte_count_must_be_that_of_the_shape(checkpoint: ArrayCheckpoint, reference: Backend) -> None:
    checkpoint.tensors[Q] = replace(checkpoint.tensors[Q], nbytes=8)
    with pytest.raises(CheckpointError, match=r"has 8 bytes; \[96, 64\] of F32 takes 24576"):
        load_model(checkpoint, reference)


def test_rows_that_end_inside_a_block(checkpoint: ArrayCheckpoint, reference: Backend) -> None:
    checkpoint.tensors[Q] = replace(checkpoint.tensors[Q], dtype=BY_NAME["Q4_K"])
    with pytest.raises(CheckpointError, match=r"Q4_K, in blocks of 256, but its rows have 64 elements"):
        load_model(checkpoint, reference)


def test_a_format_nobody_knows(checkpoint: ArrayCheckpoint, reference: Backend) -> None:
    checkpoint.tensors[Q] = replace(checkpoint.tensors[Q], dtype=DType("GGUF_TYPE_99", 1, 0, 99))
    with pytest.raises(UnsupportedError, match=r"q_proj\.weight is stored as GGUF_TYPE_99"):
        load_model(checkpoint, reference)


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        (
            {"architecture": "mamba"},
            UnsupportedError,
            "'mamba' is not supported; known: .*gemma2, gemma3, .*llama, .*mixtral, .*qwen2_moe",
        ),
        ({"rope": RopeSpec(kind="proportional")}, UnsupportedError, "'proportional' is not supported"),
        ({"rope": RopeSpec(theta=float("nan"))}, CheckpointError, "theta is nan"),
        ({"rope": RopeSpec(factor=0)}, CheckpointError, "factor is 0"),
        ({"rope": RopeSpec(rotary_dim=32)}, CheckpointError, "rotary dimension 32"),
        ({"rope": RopeSpec(factors=(1.0, 2.0))}, CheckpointError, "2 rope factors"),
        ({"rope": RopeSpec(kind="longrope", long_factors=(1.0,))}, CheckpointError, "0 longrope factors"),
        ({"rope": RopeSpec(kind="llama3", high_freq_factor=1.0)}, CheckpointError, "high_freq_factor"),
        ({"rope": RopeSpec(kind="yarn", theta=1.0)}, CheckpointError, "theta is 1.0"),
    ],
)
def test_specs_that_cannot_be_computed(
    checkpoint: ArrayCheckpoint, reference: Backend, changes: dict[str, object], error: type[Exception], match: str
) -> None:
    checkpoint.spec = replace(checkpoint.spec, **changes)  # type: ignore[arg-type]
    with pytest.raises(error, match=match):
        load_model(checkpoint, reference)


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"max_model_len": 257}, "max_model_len"),
        ({"max_model_len": 0}, "max_model_len"),
        ({"quantize": "q3_k"}, "quantize"),
        ({"dtype": "int4"}, "dtype"),
        ({"quantize": "q8_0", "dtype": "float16"}, "quantize"),
    ],
)
def test_settings_are_refused_by_name(
    checkpoint: ArrayCheckpoint, reference: Backend, settings: dict[str, object], param: str
) -> None:
    with pytest.raises(UserError) as caught:
        load_model(checkpoint, reference, **settings)  # type: ignore[arg-type]
    assert caught.value.param == param


def test_a_file_that_went_away(checkpoint: ArrayCheckpoint, reference: Backend) -> None:
    with pytest.raises(CheckpointError, match=r"cannot be opened.*No such file"):
        load_model(checkpoint, reference)


def test_a_vector_cut_short(tmp_path: Path, reference: Backend) -> None:
    spec = toy_spec()
    checkpoint = array_checkpoint(tmp_path / "weights", spec, toy_arrays(spec))
    name = "model.norm.weight"
    checkpoint.tensors[name] = replace(checkpoint.tensors[name], offset=checkpoint.path.stat().st_size - 8)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight.*8 of 256 bytes"):
        load_model(checkpoint, reference)


def test_leftovers_of_exporters_are_ignored_and_said(tmp_path: Path, reference: Backend) -> None:
    spec = toy_spec(tie_word_embeddings=True)
    checkpoint = array_checkpoint(tmp_path / "weights", spec, toy_arrays(spec))
    for name in ("model.layers.0.self_attn.rotary_emb.inv_freq", "lm_head.weight"):
        checkpoint.add(name, bytes(32), BY_NAME["F32"], (8,))
    notes = load_model(checkpoint, reference).layout.notes
    assert notes == (
        "tensor model.layers.0.self_attn.rotary_emb.inv_freq is not used",
        "tensor lm_head.weight is not used",
    )


def test_progress_ends_at_the_whole(tmp_path: Path, reference: Backend) -> None:
    spec = toy_spec()
    checkpoint = array_checkpoint(tmp_path / "weights", spec, toy_arrays(spec))
    seen: list[tuple[int, int]] = []
    load_model(checkpoint, reference, progress=lambda done, total: seen.append((done, total)))
    total = sum(t.nbytes for t in checkpoint.tensors.values())
    assert len(seen) == len(checkpoint.tensors) and seen[-1] == (total, total)
    assert np.all(np.diff([done for done, _ in seen]) > 0)


@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
def test_every_table_names_distinct_tensors_and_keys(architecture: str) -> None:
    table = ARCHITECTURES[architecture].parameters
    # Gates where only the largest count and where all do; what pools runs of tokens that overlap, and others; gates of
    # heads and of their elements, which have one key; a norm before the MLP in some layers, behind attention in others;
    # projections of attention in some layers, of a recurrence in others.
    twice = {"gemma3n": 1, "deepseek_v4": 4, "laguna": 1, "olmo_hybrid": 1, "kimi_linear": 2}.get(architecture, 0)
    same_key = architecture == "laguna"
    assert len({p.key for p in table}) + same_key == len({p.name for p in table}) + twice == len(table)
