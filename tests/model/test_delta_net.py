"""Models with gated delta nets beside transformers: Qwen3-Next, Qwen 3.5 and its mixtures of experts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from homenode.compute.ops import Backend
from homenode.compute.reference import ReferenceBackend
from homenode.errors import CheckpointError, UnsupportedError
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.parts import PartitionSpec
from homenode.model.weights.load import load_model
from tests.model.config_fields import check_fields
from tests.model.conftest import make_backend
from tests.model.delta_gguf import write_delta_gguf
from tests.model.driver import Driver
from tests.model.parity import Case, check_file, spread_error
from tests.model.split import split_driver
from tests.model.transformers_models import logprobs, make_model, prompts, quiet_and_on_one_thread
from tests.model.variants import changed_folder, check_cuts_company_and_copies

pytestmark = pytest.mark.torch

HEADS: dict[str, Any] = {
    "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "num_hidden_layers": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6,
        "partial_rotary_factor": 0.25},
}  # fmt: skip
EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
# Three value heads to a key head, values wider than keys, and a last layer with a delta net; as many value heads as
# key heads, widths that fill no vector, and a wider convolution.
UNEVEN = {"linear_num_value_heads": 6, "linear_value_head_dim": 32, "num_hidden_layers": 5}
PLAIN = {
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 10,
    "linear_value_head_dim": 21,
    "linear_conv_kernel_dim": 7,
}
BOUND = 3e-5  # of the spread: a state adds up the roundings of all tokens before
CASES = {
    "qwen3_next": Case("qwen3_next", HEADS | EXPERTS | {"mlp_only_layers": [1]}, bound=BOUND),
    "qwen3_5": Case("qwen3_5_text", HEADS, bound=BOUND),
    "qwen3_5-plain": Case("qwen3_5_text", HEADS | PLAIN, bound=BOUND),
    "qwen3_5_moe": Case("qwen3_5_moe_text", HEADS | EXPERTS | UNEVEN, bound=BOUND),
}


@pytest.fixture(params=["reference", "native", "torch"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """All of them, with float32 products."""
    return make_backend(request.param, rounding=False)


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Case, Path, Any]:
    """A case, its folder, and the model of transformers."""
    case, folder = CASES[request.param], tmp_path_factory.mktemp("delta") / request.param
    with quiet_and_on_one_thread():
        return case, folder, make_model(case.kind, case.changes, folder, seed=case.seed)


def check(path: Path, theirs: Any, backend: Backend) -> None:
    """Logits of a prompt that is computed in uneven pieces."""
    model = load_model(open_checkpoint(path), backend)
    prompt = prompts((45,))[0]
    with quiet_and_on_one_thread():
        wanted = logprobs(theirs, prompt)
    assert spread_error(Driver(model, backend).prefill(prompt, chunk=11)[1], wanted) < BOUND


@pytest.mark.parametrize("made", CASES, indirect=True)
def test_a_folder_has_the_tokens_of_transformers(made: tuple[Case, Path, Any], backend: Backend) -> None:
    case, folder, theirs = made
    with quiet_and_on_one_thread():
        check_file(folder, theirs, backend, case.bound)


GGUF_NAMES = {"qwen3_next": "qwen3next", "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe"}


@pytest.mark.parametrize("made", CASES, indirect=True)
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "apart"])
def test_a_gguf_file_has_the_logits_of_transformers(
    made: tuple[Case, Path, Any], fused: bool, backend: Backend
) -> None:
    """Value heads in turn, decays that are not to be exponentiated, sections of positions that change nothing, and a
    block behind the layers that predicts further tokens.
    """
    case, folder, theirs = made
    file = folder / f"{fused}.gguf"
    keys = {} if fused else {"rope.dimension_sections": [2, 1, 1, 0]}
    check(write_delta_gguf(theirs, file, GGUF_NAMES[case.kind], fused=fused, predicts=True, keys=keys), theirs, backend)


@pytest.mark.parametrize("made", ["qwen3_5"], indirect=True)
def test_layers_with_a_state_may_be_listed(made: tuple[Case, Path, Any], backend: Backend) -> None:
    _, folder, theirs = made
    keys = {"attention.recurrent_layers": [True, True, True, False], "full_attention_interval": 3}
    check(write_delta_gguf(theirs, folder / "listed.gguf", "qwen35", keys=keys), theirs, backend)


@pytest.mark.parametrize("made", ["qwen3_5", "qwen3_5_moe"], indirect=True)
def test_the_text_of_a_model_that_sees_pictures(made: tuple[Case, Path, Any], tmp_path: Path, backend: Backend) -> None:
    """With sections of positions, tensors for pictures and a block that predicts further tokens."""
    from safetensors.numpy import load_file, save_file

    case, folder, theirs = made
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] |= {"mrope_section": [2, 1, 1], "mrope_interleaved": True}
    whole = "Qwen3_5MoeForConditionalGeneration" if "moe" in case.kind else "Qwen3_5ForConditionalGeneration"
    text = {key: value for key, value in config.items() if key != "architectures"}
    told = {
        "architectures": [whole],
        "model_type": case.kind.removesuffix("_text"),
        "text_config": text,
        "vision_config": {},
    }
    (tmp_path / "config.json").write_text(json.dumps(told))
    tensors = {
        name.replace("model.", "model.language_model.", 1): values
        for name, values in load_file(folder / "model.safetensors").items()
    }
    further = {
        "model.visual.patch_embed.weight": (8, 8),
        "mtp.fc.weight": (64, 128),
        "mtp.layers.0.self_attn.q_proj.weight": (4, 4),
    }
    tensors |= {name: np.ones(shape, np.float32) for name, shape in further.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    check(tmp_path, theirs, backend)


@pytest.mark.parametrize("made", CASES, indirect=True)
def test_cuts_company_and_copies_change_no_bit(made: tuple[Case, Path, Any], backend: Backend) -> None:
    _, folder, _ = made
    check_cuts_company_and_copies(folder, backend)


@pytest.mark.parametrize("made", ["qwen3_5_moe"], indirect=True)
@pytest.mark.parametrize("dtype", [None, "Q8_0"])
def test_value_heads_in_turn_go_with_their_key_head(made: tuple[Case, Path, Any], dtype: str | None) -> None:
    """A rank has a run of rows, and of columns, for each of a key head's value heads."""
    _, folder, theirs = made
    file = write_delta_gguf(theirs, folder / f"ranks-{dtype}.gguf", "qwen35moe", dtype=dtype)
    checkpoint, backend, prompt = open_checkpoint(file), ReferenceBackend(), prompts((20,))[0]
    _, whole = Driver(load_model(checkpoint, backend), backend, kv_dtype="f32").prefill(prompt)
    for how in (PartitionSpec(ranks=2), PartitionSpec(stages=2, ranks=2)):
        _, parts = split_driver(checkpoint, how, kv_dtype="f32").prefill(prompt)
        assert spread_error(parts, whole) < BOUND


@pytest.mark.parametrize("made", ["qwen3_5"], indirect=True)
def test_a_stage_may_have_no_attention(made: tuple[Case, Path, Any]) -> None:
    checkpoint, backend, prompt = open_checkpoint(made[1]), make_backend("native", rounding=False), prompts((20,))[0]
    _, whole = Driver(load_model(checkpoint, backend), backend, kv_dtype="f32").prefill(prompt)
    stages = split_driver(
        checkpoint, PartitionSpec(stages=2), lambda: make_backend("native", rounding=False), kv_dtype="f32"
    )
    assert np.array_equal(stages.prefill(prompt, chunk=6)[1], whole)


@pytest.mark.parametrize(
    ("change", "error", "problem"),
    [
        ({"attn_output_gate": False}, UnsupportedError, "attn_output_gate false is not supported"),
        ({"attention_bias": True}, UnsupportedError, "attention_bias true is not supported"),
        ({"hidden_act": "gelu"}, UnsupportedError, "hidden_act 'gelu' is not supported"),
        ({"linear_num_value_heads": 5}, CheckpointError, "a multiple of 2 key heads"),
        ({"linear_num_key_heads": 0}, CheckpointError, "linear_num_key_heads"),
        ({"layer_types": ["linear_attention", "sliding_attention"] * 2}, CheckpointError, "layer_types"),
        ({"linear_conv_kernel_dim": 5}, CheckpointError, "conv1d.weight"),
        ({"linear_value_head_dim": 8}, CheckpointError, "of q, k and v"),
        ({"architectures": ["Qwen4ExpForCausalLM"], "model_type": "qwen4_exp"}, UnsupportedError, "Qwen4Exp"),
    ],
)
@pytest.mark.parametrize("made", ["qwen3_5"], indirect=True)
def test_what_cannot_be_run_is_refused_by_name(
    made: tuple[Case, Path, Any], tmp_path: Path, change: dict[str, Any], error: type[Exception], problem: str
) -> None:
    _, folder, _ = made
    with pytest.raises(error, match=problem):
        load_model(open_checkpoint(changed_folder(folder, change, tmp_path)), ReferenceBackend())


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["qwen3_next", "qwen3_5", "qwen3_5_moe"])
def test_every_field_is_read_as_transformers_reads_it_or_refused(name: str, tmp_path: Path) -> None:
    check_fields(CASES[name].kind, CASES[name].changes, tmp_path / "model")
