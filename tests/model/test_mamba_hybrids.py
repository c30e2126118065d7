"""Models with short convolutions or the recurrence of Mamba 2 beside transformers: LFM2, Granite 4, Nemotron-H,
Falcon-H1, Mamba 2 and Bamba.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from homenode.compute.ops import Backend, Precision
from homenode.compute.reference import ReferenceBackend
from homenode.compute.reference.ops import EagerOps
from homenode.errors import CheckpointError, UnsupportedError
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.parts import PartitionSpec
from homenode.model.weights.load import load_model
from tests.model.config_fields import check_fields
from tests.model.conftest import make_backend
from tests.model.driver import Driver, Sequence
from tests.model.parity import Case, check_file, spread_error, write_stacked_gguf
from tests.model.split import split_driver
from tests.model.transformers_models import logprobs, make_model, prompts, quiet_and_on_one_thread
from tests.model.variants import changed_folder, check_cuts_company_and_copies

pytestmark = pytest.mark.torch

BOUND = 3e-5  # of the spread: a state adds up the roundings of all tokens before
_L, _F, _C = "linear_attention", "full_attention", "conv"
_CONVOLUTIONS: dict[str, Any] = {"num_hidden_layers": 4, "layer_types": [_C, _C, _F, _C]}
_MAMBA: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_expand": 2}
_GRANITE: dict[str, Any] = _MAMBA | {
    "num_hidden_layers": 4, "layer_types": [_L, _L, _F, _L], "shared_intermediate_size": 80,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22, "attention_multiplier": 0.03125, "logits_scaling": 8.0,
}  # fmt: skip
_NEMOTRON: dict[str, Any] = {
    "num_hidden_layers": None, "head_dim": 32, "ssm_state_size": 16, "mamba_num_heads": 8, "mamba_head_dim": 16,
    "n_groups": 2,
    "layers_block_type": [_L, "moe", _F, "mlp", _L, "moe"], "n_routed_experts": 8, "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 48, "routed_scaling_factor": 2.5,
}  # fmt: skip
_FALCON: dict[str, Any] = {
    "num_hidden_layers": 2, "mamba_d_ssm": 96, "mamba_n_heads": 6, "mamba_d_head": 16, "mamba_n_groups": 2,
    "mamba_d_state": 16, "mamba_rms_norm": True,
    "mamba_norm_before_gate": False, "embedding_multiplier": 5.6, "lm_head_multiplier": 0.5,
    "attention_in_multiplier": 0.9,
    "attention_out_multiplier": 0.7, "key_multiplier": 0.6, "ssm_in_multiplier": 1.2, "ssm_out_multiplier": 0.8,
    "ssm_multipliers": [0.9, 0.7, 1.3, 0.8, 1.1], "mlp_multipliers": [0.8, 1.4], "head_dim": 16,
}  # fmt: skip
_MAMBA2: dict[str, Any] = {
    "num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "expand": 2, "tie_word_embeddings": True
}  # fmt: skip
CASES = {
    "lfm2": Case("lfm2", _CONVOLUTIONS | {"block_multiple_of": 16}, bound=BOUND),
    "lfm2-biased": Case(
        "lfm2",
        _CONVOLUTIONS
        | {"conv_bias": True, "conv_L_cache": 4, "block_auto_adjust_ff_dim": False, "tie_word_embeddings": True},
        bound=BOUND,
    ),
    "lfm2_moe": Case(
        "lfm2_moe",
        _CONVOLUTIONS
        | {"num_dense_layers": 1, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
        | {"routed_scaling_factor": 1.5, "use_expert_bias": True},
        bound=BOUND,
    ),
    "granite": Case(
        "granitemoehybrid",
        _GRANITE | {"num_local_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 48, "mamba_n_groups": 1},
        bound=BOUND,
    ),
    "granite-dense": Case(
        "granitemoehybrid",
        _GRANITE
        | {"num_local_experts": 0, "mamba_n_groups": 2, "position_embedding_type": "rope", "attention_bias": True},
        bound=BOUND,
    ),
    "nemotron": Case("nemotron_h", _NEMOTRON, bound=BOUND),
    "nemotron-latent": Case(
        "nemotron_h",
        _NEMOTRON | {"moe_latent_size": 24, "n_groups": 1, "use_bias": True},
        bound=BOUND,
    ),
    "falcon": Case("falcon_h1", _FALCON, bound=BOUND),
    "falcon-norm-first": Case("falcon_h1", _FALCON | {"mamba_norm_before_gate": True, "mlp_bias": True}, bound=BOUND),
    "falcon-no-norm": Case(
        "falcon_h1", _FALCON | {"mamba_rms_norm": False, "projectors_bias": True, "mamba_proj_bias": True}, bound=BOUND
    ),
    "mamba2": Case("mamba2", _MAMBA2, bound=BOUND),
    "mamba2-biased": Case("mamba2", _MAMBA2 | {"use_bias": True, "use_conv_bias": False, "n_groups": 8}, bound=1e-4),
    "bamba": Case(
        "bamba",
        _MAMBA | {"num_hidden_layers": 3, "attn_layer_indices": [1], "mamba_n_groups": 2, "head_dim": 16},
        bound=BOUND,
    ),
}
ONE_OF_EACH = ("lfm2-biased", "granite", "nemotron-latent", "falcon-norm-first", "mamba2")


@pytest.fixture(params=["reference", "native", "torch"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """All of them, with float32 products."""
    return make_backend(request.param, rounding=False)


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Case, Path, Any]:
    """A case, its folder, and the model of transformers."""
    case, folder = CASES[request.param], tmp_path_factory.mktemp("mamba") / request.param
    with quiet_and_on_one_thread():
        return case, folder, make_model(case.kind, case.changes, folder, seed=case.seed)


@pytest.mark.parametrize("made", CASES, indirect=True)
def test_a_folder_has_the_tokens_of_transformers(made: tuple[Case, Path, Any], backend: Backend) -> None:
    case, folder, theirs = made
    with quiet_and_on_one_thread():
        check_file(folder, theirs, backend, case.bound)


_SSM = {"ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.inner_size": 128, "ssm.time_step_rank": 8}
_SCALES = {
    "embedding_scale": 12.0,
    "residual_scale": 0.22,
    "logit_scale": 8.0,
    "attention.scale": 0.03125,
}
GGUF: dict[
    str, tuple[str, dict[str, Any], bool]
] = {  # what the file calls it and says, and whether q and k are reordered
    "lfm2-biased": ("lfm2", {"shortconv.l_cache": 4, "attention.head_count_kv": [0, 0, 2, 0]}, False),
    "lfm2_moe": (
        "lfm2moe",
        {
            "shortconv.l_cache": 3,
            "attention.head_count_kv": [0, 0, 2, 0],
            "expert_gating_func": 2,
            "expert_weights_scale": 1.5,
        },
        False,
    ),
    "granite": (
        "granitehybrid",
        _SSM
        | _SCALES
        | {"ssm.group_count": 1, "attention.head_count_kv": [0, 0, 2, 0], "rope.scaling.finetuned": False}
        | {"expert_shared_feed_forward_length": 80},
        True,
    ),
    "granite-dense": (
        "granitehybrid",
        _SSM | _SCALES | {"ssm.group_count": 2, "attention.head_count_kv": [0, 0, 2, 0], "feed_forward_length": 80},
        True,
    ),
    "nemotron-latent": (
        "nemotron_h_moe",
        _SSM
        | {"ssm.group_count": 1, "attention.head_count_kv": [0, 0, 2, 0, 0, 0], "block_count": 6}
        | {"feed_forward_length": [0, 32, 0, 96, 0, 32], "moe_latent_size": 24, "expert_weights_scale": 2.5}
        | {"expert_count": 8, "expert_used_count": 3, "expert_shared_feed_forward_length": 48}
        | {"attention.layer_norm_rms_epsilon": None, "attention.layer_norm_epsilon": 1e-5},
        False,
    ),
    "mamba2": ("mamba2", _SSM | {"ssm.group_count": 2, "attention.head_count": 0, "feed_forward_length": 0}, False),
}


@pytest.mark.parametrize("made", GGUF, indirect=True)
def test_a_gguf_file_has_the_logits_of_transformers(
    made: tuple[Case, Path, Any], request: pytest.FixtureRequest, backend: Backend
) -> None:
    case, folder, theirs = made
    name, keys, interleaved = GGUF[request.node.callspec.params["made"]]
    file = folder / "model.gguf"
    as_file = replace(case, gguf_name=name, gguf_keys=keys, interleaved=interleaved)
    if not file.exists():
        changes = {key: value for key, value in case.changes.items() if key != "num_hidden_layers" or value}
        write_stacked_gguf(replace(as_file, changes=changes), folder, file)
    model, prompt = load_model(open_checkpoint(file), backend), prompts((45,))[0]
    with quiet_and_on_one_thread():
        wanted = logprobs(theirs, prompt)
    assert spread_error(Driver(model, backend).prefill(prompt, chunk=11)[1], wanted) < BOUND


@pytest.mark.parametrize("made", ONE_OF_EACH, indirect=True)
def test_cuts_company_and_copies_change_no_bit(made: tuple[Case, Path, Any], backend: Backend) -> None:
    _, folder, _ = made
    check_cuts_company_and_copies(folder, backend)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("made", ONE_OF_EACH, indirect=True)
def test_ranks_answer_as_the_whole(made: tuple[Case, Path, Any], ranks: int) -> None:
    """Three ranks have parts of groups, whose norm is over what all of them have."""
    checkpoint, backend, prompt = open_checkpoint(made[1]), ReferenceBackend(), prompts((20,))[0]
    _, whole = Driver(load_model(checkpoint, backend), backend, kv_dtype="f32").prefill(prompt)
    _, parts = split_driver(checkpoint, PartitionSpec(ranks=ranks), kv_dtype="f32").prefill(prompt)
    assert spread_error(parts, whole) < BOUND


@pytest.mark.parametrize(
    ("made", "change", "error", "problem"),
    [
        ("lfm2", {"layer_types": ["conv", "sliding_attention"] * 2}, CheckpointError, "layer_types"),
        ("lfm2", {"conv_L_cache": 5}, CheckpointError, "conv.conv.weight"),
        ("granite", {"time_step_limit": [0.0, 0.1]}, UnsupportedError, "time_step_limit"),
        ("granite", {"mamba_n_groups": 3}, CheckpointError, "a multiple of 3 groups"),
        ("granite", {"mamba_n_heads": 7}, CheckpointError, "mamba_n_heads"),
        ("granite", {"mamba_d_state": 8}, CheckpointError, "of x, b, c"),
        ("granite", {"mamba_d_conv": 5}, CheckpointError, "5 weights each"),
        ("nemotron", {"mlp_bias": True}, UnsupportedError, "mlp_bias true is not supported"),
        (
            "nemotron",
            {"layers_block_type": None, "hybrid_override_pattern": "ME*X"},
            CheckpointError,
            "hybrid_override_pattern",
        ),
        ("falcon", {"mlp_multipliers": [1.0]}, CheckpointError, "mlp_multipliers"),
        ("mamba2", {"hidden_act": "gelu"}, UnsupportedError, "hidden_act 'gelu' is not supported"),
        ("mamba2", {"expand": 3}, CheckpointError, "num_heads"),
    ],
    indirect=["made"],
)
def test_what_cannot_be_run_is_refused_by_name(
    made: tuple[Case, Path, Any], tmp_path: Path, change: dict[str, Any], error: type[Exception], problem: str
) -> None:
    _, folder, _ = made
    with pytest.raises(error, match=problem):
        load_model(open_checkpoint(changed_folder(folder, change, tmp_path)), ReferenceBackend())


@pytest.mark.parametrize("made", ["nemotron", "nemotron-latent"], indirect=True)
def test_between_experts_rows_of_recurrences_are_multiplied_finely(
    made: tuple[Case, Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What bfloat16 takes from them would have rows choose other experts; without experts nothing is asked for."""
    asked, linear = list[str](), EagerOps.linear

    def told(ops: EagerOps, *given: Any, precision: Precision = "usual", **named: Any) -> Any:
        asked.append(precision)
        return linear(ops, *given, precision=precision, **named)

    monkeypatch.setattr(EagerOps, "linear", told)
    backend, (_, folder, _) = ReferenceBackend(), made
    model = load_model(open_checkpoint(folder), backend)
    Driver(model, backend).step([(Sequence([3, 4, 5]), 3)])
    spec = model.spec
    attending, recurrent = (
        sum(found(n) is not None for n in range(spec.num_layers)) for found in (spec.kv_of, spec.state_of)
    )
    assert recurrent and asked.count("fine") == (0 if spec.moe is None else attending + 2 * recurrent)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["lfm2", "lfm2_moe", "granite", "nemotron", "falcon", "mamba2", "bamba"])
def test_every_field_is_read_as_transformers_reads_it_or_refused(name: str, tmp_path: Path) -> None:
    changes = dict(CASES[name].changes)
    if "attention_in_multiplier" in changes:
        changes["attention_in_multiplier"] = 0.03  # at 90 the float32 of transformers is far from its float64
    check_fields(CASES[name].kind, changes, tmp_path / "model")
