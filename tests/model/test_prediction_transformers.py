"""Blocks that predict further tokens beside transformers, which leaves them out: the block's layer is one of a model
that transformers makes, and what joins tokens and rows before it is computed here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from homenode.compute.ops import Backend, FloatArray, StepArrays, StepLimits
from homenode.model.checkpoint.index import OpenedCheckpoint, open_checkpoint
from homenode.model.weights.load import load_model
from tests.model.test_glm4_moe import SHAPE as GLM
from tests.model.transformers_models import make_model, quiet_and_on_one_thread

pytestmark = pytest.mark.torch

TOKENS, BOUND = 20, 1e-4  # the bound is of the spread of log-probabilities
LIMITS = StepLimits(32, 4, 32, 4)
DELTA = {
    "num_hidden_layers": 4, "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 32, "linear_value_head_dim": 32, "layer_types": ["linear_attention"] * 3
    + ["full_attention"],
}  # fmt: skip
EXPERTS = {
    "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    "norm_topk_prob": True,
}  # fmt: skip
LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16,
    "v_head_dim": 32, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1, "routed_scaling_factor": 2.5,
}  # fmt: skip
DEEPSEEK = ("model.layers.{layer}.", "model.layers.{layer}.", "enorm hnorm eh_proj shared_head.norm", 0.0)
QWEN = ("mtp.layers.0.", "mtp.", "pre_fc_norm_embedding pre_fc_norm_hidden fc norm", 1.0)
# Of each family what changes of its configuration; what names in folders begin with, of the layer and of the others;
# the others: norm of tokens, norm of rows, matrix, last norm; and what is added to norms as they are stored.
FAMILIES: dict[str, tuple[dict[str, Any], tuple[str, str, str, float]]] = {
    "qwen3_next": (DELTA | EXPERTS, QWEN),
    "qwen3_5_text": (DELTA, QWEN),
    "qwen3_5_moe_text": (DELTA | EXPERTS, QWEN),
    "deepseek_v3": (LATENT, DEEPSEEK),
    "glm4_moe": (GLM | {"use_qk_norm": True, "num_hidden_layers": 3}, DEEPSEEK),
}


@pytest.mark.parametrize("backend", ["native"], indirect=True)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_block_has_the_logprobs_of_a_layer_of_transformers(name: str, tmp_path: Path, backend: Backend) -> None:
    changes, style = FAMILIES[name]
    folder = tmp_path / "model"
    rng = np.random.default_rng(4)
    with quiet_and_on_one_thread():
        made = make_model(name, changes, folder)
        others = _others(made.config.hidden_size, style, rng)
        _add_block(folder, made.config.num_hidden_layers, style, others)
        ids = rng.integers(3, made.config.vocab_size, TOKENS).astype(np.int32)
        rows = rng.standard_normal((TOKENS, made.config.hidden_size)).astype(np.float32)
        expected = _predicted(made, ids, rows, others, style[3])
    found = _computed(open_checkpoint(folder), ids, rows, backend)
    assert np.abs(found - expected).max() < BOUND * np.ptp(expected)
    assert np.array_equal(found.argmax(axis=1), expected.argmax(axis=1))


def _others(width: int, style: tuple[str, str, str, float], rng: np.random.Generator) -> list[FloatArray]:
    """Norm of tokens, norm of rows, matrix and last norm, as they are stored."""
    norms = [(1 - style[3] + 0.2 * rng.standard_normal(width)).astype(np.float32) for _ in range(3)]
    matrix = (rng.standard_normal((width, 2 * width)) / np.sqrt(2 * width)).astype(np.float32)
    return [norms[0], norms[1], matrix, norms[2]]


def _add_block(folder: Path, layers: int, style: tuple[str, str, str, float], others: list[FloatArray]) -> None:
    """A copy of the last layer and the others beside the tensors of the folder."""
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    layer, prefix, names = (part.format(layer=layers) for part in style[:3])
    last = f"model.layers.{layers - 1}."
    block = {layer + key.removeprefix(last): values for key, values in tensors.items() if key.startswith(last)}
    block |= {f"{prefix}{each}.weight": values for each, values in zip(names.split(), others, strict=True)}
    save_file(tensors | block, folder / "model.safetensors", {"format": "pt"})


def _predicted(made: Any, ids: Any, rows: FloatArray, others: list[FloatArray], added: float) -> FloatArray:
    """The log-probabilities of the last layer alone behind joined tokens and rows, and before another last norm."""
    import torch

    token_norm, row_norm, matrix, last_norm = (torch.from_numpy(each) for each in others)
    epsilon, config = made.config.rms_norm_eps, made.config

    def normed(x: Any, weight: Any) -> Any:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + epsilon) * (added + weight)

    with torch.no_grad():
        embeddings = made.get_input_embeddings()(torch.from_numpy(ids).long())
        joined = torch.cat((normed(embeddings, token_norm), normed(torch.from_numpy(rows), row_norm)), -1) @ matrix.T
        made.model.layers = made.model.layers[-1:]
        made.model.norm.weight.copy_(last_norm)
        if types := getattr(config, "layer_types", None):
            config.layer_types = types[-1:]
        config.num_hidden_layers = 1
        logits = made(inputs_embeds=joined[None], use_cache=False).logits[0]
        return np.asarray(logits.float().log_softmax(-1).numpy(), np.float32)


def _computed(checkpoint: OpenedCheckpoint, ids: Any, rows: FloatArray, backend: Backend) -> FloatArray:
    """The log-probabilities of the folder's block."""
    assert checkpoint.prediction is not None
    model = load_model(checkpoint, backend, dtype="float32")
    block = load_model(checkpoint.prediction, backend, dtype="float32").with_tables_of(model)
    program = backend.compile(
        block.forward(backend.kv_cache(block.kv_geometry(32, "f32"), 4), keeps_rows="normed"), LIMITS
    )
    head = backend.compile(block.head_of_rows("normed"), LIMITS)
    positions, bounds = np.arange(TOKENS, dtype=np.int32), np.array([0, TOKENS], np.int32)
    place = (bounds, np.array([TOKENS], np.int32), np.array([[2]], np.int32), positions)
    normed = np.asarray(program.run(StepArrays(ids, positions, *place, hidden=rows)))
    logits = np.asarray(head.run(StepArrays(ids, positions, *place, hidden=normed)), np.float64)
    highest = logits.max(axis=1, keepdims=True)
    return np.asarray(logits - highest - np.log(np.exp(logits - highest).sum(axis=1, keepdims=True)), np.float32)
