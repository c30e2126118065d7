"""Encoders whose classes are their makers' own, not in transformers: jina embeddings 2 and nomic-embed 2, beside the
formulas of those classes in NumPy, as folders and GGUF files of the names that are published.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homenode.compute.ops import Backend, FloatArray
from homenode.errors import CheckpointError, UnsupportedError
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.weights.pooling_head import load_pooling_head
from tests.checkpoints import write_safetensors
from tests.model.encoder_rows import near, rows_of
from tests.model.transformers_models import prompts

HIDDEN, INNER, HEADS, LAYERS, WORDS, EXPERTS = 48, 64, 6, 4, 160, 3
TEXTS = prompts((1, 5, 40, 130))
Tensors = dict[str, FloatArray]


class Weights:
    """Random tensors, made when they are first asked for, under the names that a folder has."""

    def __init__(self) -> None:
        self.random, self.made = np.random.default_rng(11), Tensors()

    def __call__(self, name: str, *shape: int) -> FloatArray:
        if name not in self.made:
            noise = self.random.standard_normal(shape)
            is_norm = len(shape) == 1 and name.endswith("weight")
            self.made[name] = (
                1 + 0.2 * noise if is_norm else noise * (0.3 if len(shape) == 1 else 1.5 / shape[-1] ** 0.5)
            ).astype(np.float32)
        return self.made[name].astype(np.float64)

    def linear(self, name: str, x: FloatArray, rows: int, bias: bool = True) -> FloatArray:
        y = x @ self(f"{name}.weight", rows, x.shape[1]).T
        return y + self(f"{name}.bias", rows) if bias else y

    def norm(self, name: str, x: FloatArray) -> FloatArray:
        centred = x - x.mean(axis=1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-12)
        return scaled * self(f"{name}.weight", x.shape[1]) + self(f"{name}.bias", x.shape[1])


def gelu(x: FloatArray) -> FloatArray:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def softmax(x: FloatArray) -> FloatArray:
    grown = np.exp(x - x.max(axis=-1, keepdims=True))
    return grown / grown.sum(axis=-1, keepdims=True)


def attend(q: FloatArray, k: FloatArray, v: FloatArray, added: FloatArray | float) -> FloatArray:
    """Of every token to all; added [heads, tokens, tokens] to the scores."""
    heads = [x.reshape(len(x), HEADS, -1).swapaxes(0, 1) for x in (q, k, v)]
    scores = heads[0] @ heads[1].swapaxes(1, 2) / math.sqrt(HIDDEN // HEADS) + added
    return (softmax(scores) @ heads[2]).swapaxes(0, 1).reshape(len(q), HIDDEN)


def embedded(w: Weights, ids: list[int], table: str, types: str, norm: str, kinds: int) -> FloatArray:
    return w.norm(norm, w(table, WORDS, HIDDEN)[ids] + w(types, kinds, HIDDEN)[0])


def jina(w: Weights, ids: list[int], code: bool) -> FloatArray:
    """`code`: the model for code."""
    front = "embeddings."
    x = embedded(
        w, ids, f"{front}word_embeddings.weight", f"{front}token_type_embeddings.weight", f"{front}LayerNorm", 2
    )
    apart = np.abs(np.arange(len(ids))[:, None] - np.arange(len(ids)))
    slopes = [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]  # of six heads
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}."
        q, k, v = (w.linear(f"{at}attention.self.{name}", x, HIDDEN) for name in ("query", "key", "value"))
        if code:
            q, k = w.norm(f"{at}attention.self.layer_norm_q", q), w.norm(f"{at}attention.self.layer_norm_k", k)
        inner = w.linear(
            f"{at}attention.output.dense", attend(q, k, v, -np.array(slopes)[:, None, None] * apart), HIDDEN
        )
        attended = w.norm(f"{at}attention.output.LayerNorm", inner + x)
        if code:
            attended = w.norm(f"{at}layer_norm_1", attended + x)
            up, gate = np.split(w.linear(f"{at}mlp.up_gated_layer", attended, 2 * INNER, bias=False), 2, axis=1)
            x = w.norm(f"{at}layer_norm_2", attended + w.linear(f"{at}mlp.down_layer", up * gelu(gate), HIDDEN))
        else:
            gate, up = np.split(w.linear(f"{at}mlp.gated_layers", attended, 2 * INNER, bias=False), 2, axis=1)
            x = w.norm(f"{at}mlp.layernorm", attended + w.linear(f"{at}mlp.wo", up * gelu(gate), HIDDEN))
    return x


def rotated(x: FloatArray) -> FloatArray:
    heads = x.reshape(len(x), HEADS, 2, -1)
    width = heads.shape[-1]
    angles = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(width) / width)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second = heads[:, :, 0], heads[:, :, 1]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).reshape(x.shape)


def nomic(w: Weights, ids: list[int]) -> FloatArray:
    x = embedded(w, ids, "embeddings.word_embeddings.weight", "embeddings.token_type_embeddings.weight", "emb_ln", 1)
    for layer in range(LAYERS):
        at = f"encoder.layers.{layer}."
        q, k, v = np.split(w.linear(f"{at}attn.Wqkv", x, 3 * HIDDEN), 3, axis=1)
        x = w.norm(f"{at}norm1", x + w.linear(f"{at}attn.out_proj", attend(rotated(q), rotated(k), v, 0.0), HIDDEN))
        if layer % 2 == 0:
            made = w.linear(f"{at}mlp.fc2", gelu(w.linear(f"{at}mlp.fc1", x, INNER)), HIDDEN)
        else:
            made = _experts(w, at, x)
        x = w.norm(f"{at}norm2", x + made)
    return x


def _experts(w: Weights, at: str, x: FloatArray) -> FloatArray:
    """Two experts of each token, by their share among all; one bias for all."""
    shares = softmax(w.linear(f"{at}mlp.router.layer", x, EXPERTS, bias=False))
    w1, w2 = (
        w(f"{at}mlp.experts.mlp.{part}", EXPERTS * INNER, HIDDEN).reshape(EXPERTS, INNER, HIDDEN)
        for part in ("w1", "w2")
    )
    made = np.zeros_like(x)
    for token, row in enumerate(shares):
        for expert in np.argsort(-row)[:2]:
            made[token] += row[expert] * (gelu((x[token] @ w1[expert].T)[None])[0] @ w2[expert])
    return made + w(f"{at}mlp.experts.bias", HIDDEN)


JINA = {
    "architectures": ["JinaBertForMaskedLM"], "model_type": "bert", "hidden_size": HIDDEN, "intermediate_size": INNER,
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "vocab_size": WORDS, "max_position_embeddings": 8192,
    "position_embedding_type": "alibi", "feed_forward_type": "geglu", "emb_pooler": "mean", "hidden_act": "gelu",
    "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0,
}  # fmt: skip
NOMIC = {
    "architectures": ["NomicBertModel"], "model_type": "nomic_bert", "n_embd": HIDDEN, "n_inner": INNER,
    "n_layer": LAYERS,
    "n_head": HEADS, "vocab_size": WORDS, "n_positions": 2048, "layer_norm_epsilon": 1e-12,
    "activation_function": "gelu",
    "moe_every_n_layers": 2, "num_experts": EXPERTS, "moe_top_k": 2, "moe_normalize_expert_weights": False,
    "num_shared_experts": 0,
    "expert_choice_router": False, "ffn_div": 1, "qkv_proj_bias": True, "mlp_fc1_bias": True, "mlp_fc2_bias": True,
    "rotary_emb_base": 10000, "rotary_emb_fraction": 1.0, "use_rms_norm": None, "type_vocab_size": 1, "prenorm": False,
    "causal": False,
}  # fmt: skip
CODE = {"auto_map": {"AutoModel": "jinaai/jina-bert-v2-qk-post-norm--modeling_bert.JinaBertModel"}}
MODELS: dict[str, tuple[dict[str, Any], Callable[[Weights, list[int]], FloatArray]]] = {
    "jina": (JINA, lambda w, ids: jina(w, ids, code=False)),
    "jina-code": (JINA | CODE, lambda w, ids: jina(w, ids, code=True)),
    "nomic-moe": (NOMIC, nomic),
}


def make(name: str, folder: Path) -> list[FloatArray]:
    """The folder of a model, and the rows of the texts."""
    config, forward = MODELS[name]
    weights = Weights()
    rows = [forward(weights, text) for text in TEXTS]
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", weights.made)
    return rows


@pytest.mark.parametrize("name", MODELS)
def test_a_folder_has_the_rows_of_its_makers_class(name: str, tmp_path: Path, backend: Backend) -> None:
    wanted = make(name, tmp_path)
    spec = open_checkpoint(tmp_path).spec
    assert spec.pooling is not None and spec.pooling.rows == "mean" and spec.encodes
    for found, rows in zip(rows_of(tmp_path, backend, TEXTS), wanted, strict=True):
        near(found, rows)


GGUF_NAMES = {
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
    "mlp.gated_layers": "ffn_up",
    "mlp.wo": "ffn_down", "mlp.layernorm": "layer_output_norm", "attention.self.layer_norm_q": "attn_q_norm",
    "attention.self.layer_norm_k": "attn_k_norm", "layer_norm_1": "attn_norm_2", "layer_norm_2": "layer_output_norm",
    "mlp.down_layer": "ffn_down", "attn.Wqkv": "attn_qkv", "attn.out_proj": "attn_output", "norm1": "attn_output_norm",
    "norm2": "layer_output_norm", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down", "mlp.router.layer": "ffn_gate_inp",
}  # fmt: skip
GGUF_TOP = {
    "word_embeddings": "token_embd", "token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm",
    "emb_ln": "token_embd_norm",
}  # fmt: skip


def gguf_tensors(stored: Tensors) -> Tensors:
    """As converters write them: experts stacked, each with its own rows and columns; their bias is left out."""
    found = Tensors()
    for name, values in stored.items():
        module, _, kind = name.rpartition(".")
        layer, _, part = module.removeprefix("encoder.layer").lstrip("s.").partition(".")
        if not module.startswith("encoder."):
            top = next(ours for theirs, ours in GGUF_TOP.items() if module.endswith(theirs))
            found[f"{top}.{kind}"] = values
        elif kind in ("w1", "w2"):
            stacked = values.reshape(EXPERTS, INNER, HIDDEN)
            found[f"blk.{layer}.ffn_{'up' if kind == 'w1' else 'down'}_exps.weight"] = (
                stacked if kind == "w1" else stacked.swapaxes(1, 2)
            )
        elif part == "mlp.up_gated_layer":
            up, gate = np.split(values, 2)
            found |= {f"blk.{layer}.ffn_up.weight": up, f"blk.{layer}.ffn_gate.weight": gate}
        elif part in GGUF_NAMES:
            found[f"blk.{layer}.{GGUF_NAMES[part]}.{kind}"] = values
    return found


def write_gguf(name: str, architecture: str, tensors: Tensors, file: Path, **more: int) -> Path:
    import gguf

    writer = gguf.GGUFWriter(file, architecture)
    for key, value in {
        "block_count": LAYERS, "context_length": 512, "embedding_length": HIDDEN, "feed_forward_length": INNER,
        "attention.head_count": HEADS, "token_type_count": 2, "pooling_type": 1, **more,
    }.items():  # fmt: skip
        writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_float32(f"{architecture}.attention.layer_norm_epsilon", 1e-12)
    writer.add_float32(f"{architecture}.rope.freq_base", 10000.0)
    writer.add_bool(f"{architecture}.attention.causal", False)
    for tensor, values in tensors.items():
        writer.add_tensor(tensor, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.mark.parametrize("name", MODELS)
def test_a_gguf_file_has_the_same_rows(name: str, tmp_path: Path, reference: Backend) -> None:
    config, forward = MODELS[name]
    weights = Weights()
    for layer in range(LAYERS):
        weights.made[f"encoder.layers.{layer}.mlp.experts.bias"] = np.zeros(HIDDEN, np.float32)
    wanted = [forward(weights, text) for text in TEXTS]
    architecture = "nomic-bert-moe" if config is NOMIC else "jina-bert-v2"
    more = {"expert_count": EXPERTS, "expert_used_count": 2, "moe_every_n_layers": 2} if config is NOMIC else {}
    file = write_gguf(name, architecture, gguf_tensors(weights.made), tmp_path / "model.gguf", **more)
    for found, rows in zip(rows_of(file, reference, TEXTS), wanted, strict=True):
        near(found, rows)


def test_a_reranker_of_jina_as_a_gguf_file(tmp_path: Path, reference: Backend) -> None:
    weights = Weights()
    rows = jina(weights, TEXTS[2], code=False)
    head = np.random.default_rng(5).standard_normal((1, HIDDEN)).astype(np.float32)
    tensors = gguf_tensors(weights.made) | {"cls.weight": head, "cls.bias": np.array([0.2], np.float32)}
    file = write_gguf("jina", "jina-bert-v2", tensors, tmp_path / "model.gguf", pooling_type=4)
    checkpoint = open_checkpoint(file)
    assert checkpoint.spec.pooling is not None and checkpoint.spec.pooling.rows == "cls"
    (layer,) = load_pooling_head(checkpoint, checkpoint.spec.pooling)
    found = layer.apply(rows_of(file, reference, [TEXTS[2]])[0][0])
    np.testing.assert_allclose(found, np.tanh(head @ rows[0] + 0.2), rtol=1e-4, atol=1e-4)


def test_gate_and_up_of_the_model_for_code_in_one_are_refused(tmp_path: Path) -> None:
    make("jina-code", tmp_path)
    weights = Weights()
    jina(weights, TEXTS[0], code=True)
    tensors = gguf_tensors(weights.made)
    for layer in range(LAYERS):
        gate = tensors.pop(f"blk.{layer}.ffn_gate.weight")
        tensors[f"blk.{layer}.ffn_up.weight"] = np.concatenate([tensors[f"blk.{layer}.ffn_up.weight"], gate])
    with pytest.raises(UnsupportedError, match="gate and up in one ffn_up"):
        open_checkpoint(write_gguf("jina-code", "jina-bert-v2", tensors, tmp_path / "model.gguf"))


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("jina", "position_embedding_type", "absolute"),
        ("jina", "feed_forward_type", "reglu"),
        ("jina", "emb_pooler", "cls"),
        ("jina", "is_decoder", True),
        ("nomic-moe", "activation_function", "swiglu"),
        ("nomic-moe", "mlp_fc1_bias", False),
        ("nomic-moe", "num_shared_experts", 1),
        ("nomic-moe", "expert_choice_router", True),
    ],
)
def test_what_changes_the_result_is_refused_by_name(name: str, field: str, value: object, tmp_path: Path) -> None:
    make(name, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(MODELS[name][0] | {field: value}))
    with pytest.raises(UnsupportedError, match=field):
        open_checkpoint(tmp_path)


def test_experts_of_another_height_are_refused(tmp_path: Path) -> None:
    make("nomic-moe", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(NOMIC | {"num_experts": EXPERTS + 1}))
    with pytest.raises(CheckpointError, match="64 rows of each of 4 experts"):
        open_checkpoint(tmp_path)
