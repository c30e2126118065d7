"""Makers of small models in Mistral's own form of folders, params.json and consolidated.safetensors, beside the same in
Hugging Face's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.checkpoints import interleave_heads, safetensors_bytes, stored, toy_config, toy_tensors, write_safetensors
from tests.quantised_folders import Form, Stored, is_quantised, quantised

Arrays = dict[str, npt.NDArray[Any]]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "rope_theta": 10000.0}
LATENT: dict[str, Any] = {
    "q_lora_rank": 20, "kv_lora_rank": 24, "qk_nope_head_dim": 10, "qk_rope_head_dim": 8, "v_head_dim": 12,
    "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "routed_scaling_factor": 1.5, "norm_topk_prob": True, "head_dim": None,
    "num_key_value_heads": 4,
}  # fmt: skip
# name -> (architecture, changes to its config.json, and what params.json has that follows from no field of it)
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "mistral": ("mistral", {}, {}),
    "tied": ("mistral", {"tie_word_embeddings": True}, {}),
    "one window": ("mistral", {"sliding_window": 6}, {"sliding_window": "6"}),
    "windows in some layers": (
        "ministral",
        {"sliding_window": 6, "layer_types": ["full_attention", "sliding_attention"]},
        {"sliding_window": [None, 6]},
    ),
    "experts": ("mixtral", {"sliding_window": None}, {}),
    "queries that grow": (
        "ministral3",
        {"rope_parameters": YARN | {"attention_factor": 1.0, "llama_4_scaling_beta": 0.4}},
        {"yarn": {"apply_scale": False}},
    ),
    "queries and keys that grow": ("ministral3", {"rope_parameters": YARN}, {}),
    "latent attention": (
        "mistral4",
        LATENT | {"rope_parameters": YARN | {"attention_factor": 1.0, "llama_4_scaling_beta": 0.4}},
        {"yarn": {"apply_scale": False}},
    ),
    "latent attention whose scores grow": (
        "mistral4",
        LATENT | {"q_lora_rank": None, "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
        {"yarn": {"apply_scale": True}, "q_lora_rank": None},
    ),
}
_FIGURES = {
    "hidden_size": "dim", "num_hidden_layers": "n_layers", "intermediate_size": "hidden_dim",
    "num_attention_heads": "n_heads", "num_key_value_heads": "n_kv_heads", "rms_norm_eps": "norm_eps",
    "head_dim": "head_dim", "vocab_size": "vocab_size", "max_position_embeddings": "max_position_embeddings",
    "tie_word_embeddings": "tied_embeddings",
    **{key: key for key in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")},
}  # fmt: skip
_MOE = {
    "num_local_experts": "num_experts", "n_routed_experts": "num_experts", "num_experts_per_tok": "num_experts_per_tok",
    "moe_intermediate_size": "expert_hidden_dim", "n_shared_experts": "num_shared_experts",
    "first_k_dense_replace": "first_k_dense_replace", "routed_scaling_factor": "routed_scale",
}  # fmt: skip
_NAMES = {
    "model.embed_tokens": "tok_embeddings", "model.norm": "norm", "lm_head": "output", "model.layers": "layers",
    "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo", "self_attn.q_a_proj": "attention.wq_a",
    "self_attn.q_a_layernorm": "attention.q_a_norm", "self_attn.q_b_proj": "attention.wq_b",
    "self_attn.kv_a_proj_with_mqa": "attention.wkv_a_with_mqa", "self_attn.kv_a_layernorm": "attention.kv_a_norm",
    "self_attn.kv_b_proj": "attention.wkv_b", "mlp.shared_experts.": "shared_experts.", "mlp.experts.": "experts.",
    "mlp.gate.": "gate.", "block_sparse_moe.": "feed_forward.", "mlp.": "feed_forward.", "gate_proj": "w1",
    "down_proj": "w2", "up_proj": "w3",
}  # fmt: skip


def case_config(name: str, **changes: Any) -> dict[str, Any]:
    """The config.json of a case."""
    architecture, own, _ = CASES[name]
    config = toy_config(architecture, **own | changes)
    return config | {key: None for key in ("q_lora_rank",) if key in own and own[key] is None}


def case_tensors(config: Mapping[str, Any]) -> Arrays:
    """Its tensors, as Hugging Face names them."""
    return _latent_tensors(config) if config["model_type"] == "mistral4" else dict(toy_tensors(config))


def params_of(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The params.json of the same model."""
    params = {own: config[key] for key, own in _FIGURES.items() if config.get(key) is not None}
    rope = config.get("rope_parameters", {"rope_type": "default", "rope_theta": config["rope_theta"]})
    params["rope_theta"] = rope["rope_theta"]
    if moe := {own: config[key] for key, own in _MOE.items() if key in config}:
        params["moe"] = moe
    if rope["rope_type"] == "yarn":
        original = {"original_max_position_embeddings": rope["original_max_position_embeddings"]}
        params["yarn"] = {"factor": rope["factor"], "beta": 32, "alpha": 1, **original}
        if "llama_4_scaling_beta" in rope:
            params["llama_4_scaling"] = {"beta": rope["llama_4_scaling_beta"], **original}
    for key, value in CASES[name][2].items():
        params[key] = params.get(key, {}) | value if isinstance(value, dict) else value
    return params


def own_name(name: str) -> str:
    """What Mistral calls a tensor."""
    for usual, own in _NAMES.items():
        name = name.replace(usual, own)
    return name


def own_tensors(config: Mapping[str, Any], tensors: Mapping[str, npt.NDArray[Any]]) -> Arrays:
    """The tensors under Mistral's names, the rows of q and k in its order."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    found = {}
    for name, values in tensors.items():
        count = 0 if "kv_lora_rank" in config else heads.get(name.split(".")[-2], 0)
        found[own_name(name)] = interleave_heads(values, count) if count else values
    return found


def write_both(folder: Path, name: str, **params: Any) -> tuple[Path, Path]:
    """The model of a case in Mistral's form, and in Hugging Face's. `params`: changes to params.json."""
    config, own, usual = case_config(name), folder / "mistral", folder / "usual"
    tensors = case_tensors(config)
    for path in (own, usual):
        path.mkdir(parents=True)
    (own / "params.json").write_text(json.dumps(params_of(name, config) | params))
    write_safetensors(own / "consolidated.safetensors", own_tensors(config, tensors))
    (usual / "config.json").write_text(json.dumps(config))
    write_safetensors(usual / "model.safetensors", tensors)
    return own, usual


def write_quantised_both(folder: Path, name: str, form: Form, quantisation: dict[str, Any]) -> tuple[Path, Path]:
    """The same with quantised matrices in Mistral's form, which `quantisation` says, and the float32 values that they
    stand for in Hugging Face's.
    """
    own, usual = write_both(folder, name, **quantisation)
    config = case_config(name)
    plain = case_tensors(config)
    heads = {"wq": config["num_attention_heads"], "wk": config["num_key_value_heads"]}
    tensors: Stored = {}
    for seed, (tensor, values) in enumerate(plain.items()):
        called = own_name(tensor)
        (turned,) = own_tensors(config, {tensor: values}).values()
        if not (is_quantised(tensor) or ".experts." in tensor):
            tensors[called] = ("F32", turned.shape, stored(turned, "F32").tobytes())
            continue
        module = called.removesuffix(".weight")
        parts, meant = quantised(form, module, turned, seed)
        count = heads.get(module.rpartition(".")[2], 0)
        plain[tensor] = ordered_heads(meant, count) if count else meant
        if form.method == "fp8":
            one = ("F32", (), np.float32(1).tobytes())
            parts[f"{module}.qscale_weight"] = parts.pop(f"{module}.weight_scale")
            parts |= {f"{module}.qscale_act": one, f"{module}.q_fake_quantizer.qscale_act": one}
        tensors |= parts
    (own / "consolidated.safetensors").write_bytes(safetensors_bytes(tensors))
    write_safetensors(usual / "model.safetensors", plain)
    return own, usual


def ordered_heads(values: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """The inverse of `interleave_heads`."""
    return values.reshape(heads, -1, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)


def _latent_tensors(config: Mapping[str, Any]) -> Arrays:
    random, hidden = np.random.default_rng(3), config["hidden_size"]
    heads, rank, latent = config["num_attention_heads"], config.get("q_lora_rank"), config["kv_lora_rank"]
    plain, rotary, value = (config[key] for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))

    def matrix(rows: int, columns: int) -> npt.NDArray[np.float32]:
        return (random.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    def norm(size: int) -> npt.NDArray[np.float32]:
        return (1 + 0.1 * random.standard_normal(size)).astype(np.float32)

    def gated(name: str, size: int) -> Arrays:
        found = {f"{name}.{part}_proj.weight": matrix(size, hidden) for part in ("gate", "up")}
        return found | {f"{name}.down_proj.weight": matrix(hidden, size)}

    tensors: Arrays = {
        "model.embed_tokens.weight": matrix(config["vocab_size"], hidden),
        "model.norm.weight": norm(hidden),
        "lm_head.weight": matrix(config["vocab_size"], hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        tensors |= {f"{at}.{name}_layernorm.weight": norm(hidden) for name in ("input", "post_attention")}
        queries = heads * (plain + rotary)
        if rank is None:
            tensors[f"{at}.self_attn.q_proj.weight"] = matrix(queries, hidden)
        else:
            tensors[f"{at}.self_attn.q_a_proj.weight"] = matrix(rank, hidden)
            tensors[f"{at}.self_attn.q_a_layernorm.weight"] = norm(rank)
            tensors[f"{at}.self_attn.q_b_proj.weight"] = matrix(queries, rank)
        tensors |= {
            f"{at}.self_attn.kv_a_proj_with_mqa.weight": matrix(latent + rotary, hidden),
            f"{at}.self_attn.kv_a_layernorm.weight": norm(latent),
            f"{at}.self_attn.kv_b_proj.weight": matrix(heads * (plain + value), latent),
            f"{at}.self_attn.o_proj.weight": matrix(hidden, heads * value),
        }
        if layer < config["first_k_dense_replace"]:
            tensors |= gated(f"{at}.mlp", config["intermediate_size"])
            continue
        tensors[f"{at}.mlp.gate.weight"] = matrix(config["n_routed_experts"], hidden)
        for expert in range(config["n_routed_experts"]):
            tensors |= gated(f"{at}.mlp.experts.{expert}", config["moe_intermediate_size"])
        tensors |= gated(f"{at}.mlp.shared_experts", config["moe_intermediate_size"] * config["n_shared_experts"])
    return tensors
