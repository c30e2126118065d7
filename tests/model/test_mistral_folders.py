"""Models in Mistral's own form of folders: the same answers as from Hugging Face's form of the same model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homenode.compute.ops import Backend, FloatArray
from homenode.compute.reference import ReferenceBackend
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.checkpoint.unknown_names import sees_more_than_text, unknown_names
from homenode.model.parts import PartitionSpec
from homenode.model.weights.load import load_model
from tests.checkpoints import write_safetensors
from tests.mistral_folders import CASES, case_config, case_tensors, own_tensors, write_both, write_quantised_both
from tests.model.driver import Driver
from tests.model.split import plan
from tests.quantised_folders import FORMS, Form

PROMPT = [5, 70, 33, 12, 9, 41, 2, 77, 50, 8, 61, 3, 90, 14]
BOUND = 3e-2  # of the logits' spread: activations rounded to 8 bits, and floats that become blocks of 8 bits
FP8 = {"quantization": {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}}


def logprobs(backend: Backend, folder: Path) -> FloatArray:
    model = load_model(open_checkpoint(folder), backend)
    return Driver(model, backend, kv_dtype="f32").prefill(PROMPT)[1]


@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_the_usual_form(tmp_path: Path, backend: Backend, name: str) -> None:
    own, usual = write_both(tmp_path, name)
    found, wanted = open_checkpoint(own), open_checkpoint(usual)
    assert found.spec == wanted.spec and found.tensors.keys() == wanted.tensors.keys()
    assert unknown_names(found) == () and sees_more_than_text(found) is None
    assert np.array_equal(logprobs(backend, own), logprobs(backend, usual))


@pytest.mark.parametrize("name", ["mistral", "latent attention"])
def test_a_model_that_sees_pictures_has_the_same_text(tmp_path: Path, name: str) -> None:
    own, usual = write_both(tmp_path, name, vision_encoder={"hidden_size": 8, "num_hidden_layers": 1})
    config = case_config(name)
    pictures = dict.fromkeys(
        (
            "vision_encoder.transformer.layers.0.attention.wq.weight",
            "vision_language_adapter.w_in.weight",
            "patch_merger.merging_layer.weight",
            "pre_mm_projector_norm.weight",
        ),
        np.ones((4, 4), np.float32),
    )
    write_safetensors(own / "consolidated.safetensors", own_tensors(config, case_tensors(config)) | pictures)
    checkpoint, backend = open_checkpoint(own), ReferenceBackend()
    assert sees_more_than_text(checkpoint) == "Mistral3ForConditionalGeneration" and unknown_names(checkpoint) == ()
    assert np.array_equal(logprobs(backend, own), logprobs(backend, usual))


QUANTISED = {name: FORMS[name] for name in ("8-bit floats, one scale", "4-bit floats", "packed")}
QUANTISED["packed, one scale a row"] = replace(FORMS["packed"], group=-1)


def quantisation(form: Form) -> dict[str, Any]:
    return FP8 if form.method == "fp8" else {"quantization_config": form.config}


@pytest.mark.parametrize(
    ("case", "name"),
    [
        *((case, name) for case in ("mistral", "experts", "queries that grow") for name in QUANTISED),
        ("latent attention", "8-bit floats, one scale"),
        ("latent attention", "packed, one scale a row"),
    ],
)
def test_quantised_matrices(tmp_path: Path, backend: Backend, case: str, name: str) -> None:
    own, usual = write_quantised_both(tmp_path, case, QUANTISED[name], quantisation(QUANTISED[name]))
    assert open_checkpoint(own).tensors.keys() == open_checkpoint(usual).tensors.keys()
    found, wanted = logprobs(backend, own), logprobs(ReferenceBackend(), usual)
    apart = np.abs(found - wanted).max(axis=1)  # of each token; rounding may tip a router over at one of them
    limit = BOUND * np.ptp(wanted)
    assert (np.median(apart) if "experts" in case or "latent" in case else apart.max()) < limit


@pytest.mark.parametrize("name", ["8-bit floats, one scale", "packed"])
def test_ranks_have_their_own_heads(tmp_path: Path, name: str) -> None:
    own, _ = write_quantised_both(tmp_path, "mistral", FORMS[name], quantisation(FORMS[name]))
    checkpoint, backend = open_checkpoint(own), ReferenceBackend()
    whole = load_model(checkpoint, backend).parameters.layers[1]
    parts = [
        load_model(checkpoint, backend, part=part).parameters.layers[1]
        for part in plan(checkpoint, PartitionSpec(ranks=2))
    ]
    for matrix in ("q", "k", "v"):
        assert np.array_equal(np.concatenate([part[matrix] for part in parts]), whole[matrix]), matrix
