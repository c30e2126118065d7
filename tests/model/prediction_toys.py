"""Toy models with a block that predicts further tokens, in folders of every style and in a GGUF file; and what such a
block computes, in NumPy alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.checkpoints import make_gguf, toy_config, toy_tensors, write_safetensors

Array = npt.NDArray[np.float32]
HIDDEN, VOCAB, EPSILON = 64, 128, 1e-5


def _inside(prefix: str, names: str) -> tuple[str, tuple[str, ...]]:
    return prefix, tuple(prefix + name for name in names.split())


# Of each style of names: what the layer's begin with, and the others: norm of tokens, norm of rows, matrix, last norm.
STYLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "deepseek": _inside("model.layers.2.", "enorm hnorm eh_proj shared_head.norm"),
    "qwen": ("mtp.layers.0.", ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm")),
    "flash": _inside("model.mtp.layers.0.", "enorm hnorm eh_proj final_layernorm"),
    "mimo": _inside("model.mtp_layers.0.", "token_layernorm hidden_layernorm input_proj final_layernorm"),
    "ernie": ("model.mtp_block.0.", ("model.mtp_emb_norm.0", "model.mtp_hidden_norm.0", "model.mtp_linear_proj.0")),
}
_GGUF = ("enorm", "hnorm", "eh_proj", "shared_head_norm")


def block_tensors(seed: int = 7) -> tuple[dict[str, Array], list[Array]]:
    """The tensors of a layer of Qwen 3 without what stands in front of their names, and the others in their order."""
    rng = np.random.default_rng(seed)
    layer = toy_tensors(toy_config("qwen3", num_hidden_layers=1), seed)
    own = {name.removeprefix("model.layers.0."): values for name, values in layer.items() if ".layers.0." in name}
    norms = [(1 + 0.1 * rng.standard_normal(HIDDEN)).astype(np.float32) for _ in range(3)]
    matrix = (rng.standard_normal((HIDDEN, 2 * HIDDEN)) / np.sqrt(2 * HIDDEN)).astype(np.float32)
    return own, [norms[0], norms[1], matrix, norms[2]]


def make_predicting_folder(folder: Path, style: str, change: Mapping[str, Array] | None = None, **config: Any) -> Path:
    """A model of two layers of Qwen 3 with such a block. `change`: tensors that take the places of others."""
    folder.mkdir(parents=True)
    figures = toy_config("qwen3", **config)
    layer, others = block_tensors()
    prefix, names = STYLES[style]
    tensors = toy_tensors(figures) | {prefix + name: values for name, values in layer.items()}
    tensors |= {f"{name}.weight": values for name, values in zip(names, others, strict=False)}
    write_safetensors(folder / "model.safetensors", tensors | dict(change or {}))
    (folder / "config.json").write_text(json.dumps(figures | {"num_nextn_predict_layers": 1}))
    return folder


def make_predicting_gguf(path: Path) -> Path:
    """The same as a GGUF file."""
    layer, others = block_tensors()

    def change(tensors: dict[str, Any]) -> dict[str, Any]:
        names = {name: name for name in tensors if name.startswith("blk.1.")}
        by_values = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"} | {
            f"self_attn.{n}_proj": f"attn_{n}" for n in "qkv"
        }
        by_values |= {
            "self_attn.o_proj": "attn_output",
            "self_attn.q_norm": "attn_q_norm",
            "self_attn.k_norm": "attn_k_norm",
        }
        by_values |= {f"mlp.{n}_proj": f"ffn_{n}" for n in ("gate", "up", "down")}
        assert len(names) == len(layer)
        block = {f"blk.2.{by_values[n.removesuffix('.weight')]}.weight": values for n, values in layer.items()}
        block |= {f"blk.2.nextn.{n}.weight": values for n, values in zip(_GGUF, others, strict=True)}
        return tensors | block

    counted: dict[str, Any] = {"num_hidden_layers": 3, "tensors_of": {"num_hidden_layers": 2}}
    return make_gguf(path, "qwen3", keys={"qwen3.nextn_predict_layers": 1}, change=change, **counted)


def predicted_rows(embeddings: Array, rows: Array, *, row_first: bool = False) -> tuple[Array, Array]:
    """What the block makes of tokens with these embeddings and rows, all of one sequence: its rows, and the same behind
    its last norm.
    """
    layer, (token_norm, row_norm, matrix, last_norm) = block_tensors()
    token, row = _normed(embeddings, token_norm), _normed(rows, row_norm)
    x = np.concatenate((row, token) if row_first else (token, row), axis=1) @ matrix.T
    h = _normed(x, layer["input_layernorm.weight"])
    heads = {n: (h @ layer[f"self_attn.{n}_proj.weight"].T).reshape(len(h), -1, 16) for n in "qkv"}
    q, k = (_turned(_normed(heads[n], layer[f"self_attn.{n}_norm.weight"])) for n in "qk")
    k, v = (np.repeat(each, 2, axis=1) for each in (k, heads["v"]))
    scores = np.einsum("qhd,khd->hqk", q, k) / 4
    scores += np.triu(np.full((len(h), len(h)), -np.inf), 1)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    attended = np.einsum("hqk,khd->qhd", weights, v).reshape(len(h), -1)
    x = x + attended @ layer["self_attn.o_proj.weight"].T
    h = _normed(x, layer["post_attention_layernorm.weight"])
    gate, up = (h @ layer[f"mlp.{n}_proj.weight"].T for n in ("gate", "up"))
    x = x + (gate / (1 + np.exp(-gate)) * up) @ layer["mlp.down_proj.weight"].T
    return x, _normed(x, last_norm)


def _normed(x: Array, weight: Array) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPSILON) * weight, np.float32)


def _turned(x: Array) -> Array:
    """Each head rotated by its position, halves of it turning together."""
    angles = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(8) / 8)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second = x[..., :8], x[..., 8:]
    return np.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)
