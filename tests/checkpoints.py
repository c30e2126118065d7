"""Makers of toy checkpoints, without torch: random models as Hugging Face folders and GGUF files, and raw GGUF bytes for hostile ones."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

CLASSES = {
    "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
    "mixtral": "MixtralForCausalLM", "qwen2_moe": "Qwen2MoeForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM",
    "gemma2": "Gemma2ForCausalLM", "gemma3": "Gemma3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
}  # fmt: skip
GEMMAS = ("gemma2", "gemma3")
MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {
        "num_experts": 4, "num_experts_per_tok": 3, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 32, "norm_topk_prob": False,
    },
    "qwen3_moe": {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True, "mlp_only_layers": [0]},
}  # fmt: skip


def toy_config(architecture: str = "llama", **changes: Any) -> dict[str, Any]:
    """A config.json of a toy model of 2 layers; `changes` replace or add keys, and None removes one."""
    config: dict[str, Any] = {
        "architectures": [CLASSES[architecture]],
        "model_type": architecture,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 128,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    config |= MIXTURES.get(architecture, {})
    if architecture in GEMMAS:
        config |= {"sliding_window": 24, "tie_word_embeddings": True}
        changes.setdefault("query_pre_attn_scalar", changes.get("head_dim", config["head_dim"]))
    if architecture == "mistral":
        config["sliding_window"] = None
    config |= changes
    return {key: value for key, value in config.items() if value is not None or key == "sliding_window"}


def toy_tensors(config: Mapping[str, Any], seed: int = 0) -> dict[str, npt.NDArray[np.float32]]:
    """Random float32 weights under Hugging Face names, scaled so that activations stay of order one."""
    rng = np.random.default_rng(seed)
    hidden, head = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    architecture = config["model_type"]

    def matrix(rows: int, columns: int) -> npt.NDArray[np.float32]:
        return (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    def vector(size: int, centre: float) -> npt.NDArray[np.float32]:
        return (centre + 0.1 * rng.standard_normal(size)).astype(np.float32)

    around = 0.0 if architecture in GEMMAS else 1.0  # Gemma's are stored less one
    tensors = {"model.embed_tokens.weight": matrix(config["vocab_size"], hidden), "model.norm.weight": vector(hidden, around)}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        tensors |= {at + "input_layernorm.weight": vector(hidden, around), at + "post_attention_layernorm.weight": vector(hidden, around)}
        for part, rows in (("q", queries), ("k", keys), ("v", keys)):
            tensors[f"{at}self_attn.{part}_proj.weight"] = matrix(rows, hidden)
            if architecture in ("qwen2", "qwen2_moe") or config.get("attention_bias"):
                tensors[f"{at}self_attn.{part}_proj.bias"] = vector(rows, 0.0)
            if architecture in ("qwen3", "qwen3_moe", "gemma3") and part != "v":
                tensors[f"{at}self_attn.{part}_norm.weight"] = vector(head, around)
        tensors[at + "self_attn.o_proj.weight"] = matrix(hidden, queries)
        if architecture in GEMMAS:
            tensors |= {f"{at}{place}_feedforward_layernorm.weight": vector(hidden, around) for place in ("pre", "post")}
        for block, size in _gated_blocks(config, layer):
            gate, up, down = ("w1", "w3", "w2") if architecture == "mixtral" else ("gate_proj", "up_proj", "down_proj")
            tensors |= {f"{at}{block}.{part}.weight": matrix(size, hidden) for part in (gate, up)}
            tensors[f"{at}{block}.{down}.weight"] = matrix(hidden, size)
        tensors |= {at + name: matrix(rows, hidden) for name, rows in _routers(config, layer)}
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = matrix(config["vocab_size"], hidden)
    return tensors


def fused(config: Mapping[str, Any], tensors: Mapping[str, npt.NDArray[np.float32]]) -> dict[str, npt.NDArray[np.float32]]:
    """The same tensors as files of the architecture hold them: of Phi 3 query, key and value in one, and gate and up."""
    if config["model_type"] != "phi3":
        return dict(tensors)
    found: dict[str, list[npt.NDArray[np.float32]]] = {}
    for name, values in tensors.items():
        name = re.sub(r"\.[qkv]_proj\.", ".qkv_proj.", re.sub(r"\.(gate|up)_proj\.", ".gate_up_proj.", name))
        found.setdefault(name, []).append(values)
    return {name: np.concatenate(values) for name, values in found.items()}


def _gated_blocks(config: Mapping[str, Any], layer: int) -> list[tuple[str, int]]:
    """Names and lengths of the gated MLPs of a layer."""
    if config["model_type"] == "mixtral":
        return [(f"block_sparse_moe.experts.{e}", config["intermediate_size"]) for e in range(config["num_local_experts"])]
    if "num_experts" not in config or layer in config.get("mlp_only_layers", ()):
        return [("mlp", config["intermediate_size"])]
    shared = config.get("shared_expert_intermediate_size", 0)
    experts = [(f"mlp.experts.{e}", config["moe_intermediate_size"]) for e in range(config["num_experts"])]
    return experts + ([("mlp.shared_expert", shared)] if shared else [])


def _routers(config: Mapping[str, Any], layer: int) -> list[tuple[str, int]]:
    """Names and rows of what decides how much of each expert a token gets."""
    blocks = [name for name, _ in _gated_blocks(config, layer)]
    if config["model_type"] == "mixtral":
        return [("block_sparse_moe.gate.weight", len(blocks))]
    if blocks == ["mlp"]:
        return []
    shared = "mlp.shared_expert" in blocks
    return [("mlp.gate.weight", len(blocks) - shared)] + ([("mlp.shared_expert_gate.weight", 1)] if shared else [])


def bf16_bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """float32 rounded to bfloat16 (to nearest, ties to even), as the 16 bits."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def stored(values: npt.NDArray[np.float32], dtype: str) -> Array:
    """float32 values as an array of the safetensors type F32, F16, BF16 or F64 (BF16 as uint16 bits)."""
    return bf16_bits(values) if dtype == "BF16" else values.astype({"F32": np.float32, "F16": np.float16, "F64": np.float64}[dtype])


def safetensors_bytes(tensors: Mapping[str, tuple[str, Sequence[int], bytes]], metadata: Mapping[str, str] | None = None) -> bytes:
    """A safetensors file of tensors given as (type, shape, bytes)."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values())


def write_safetensors(path: Path, tensors: Mapping[str, npt.NDArray[np.float32]], dtype: str = "F32") -> None:
    """A safetensors file of float32 values, stored as `dtype`; vectors too."""
    path.write_bytes(safetensors_bytes({name: (dtype, value.shape, stored(value, dtype).tobytes()) for name, value in tensors.items()}))


def make_folder(folder: Path, architecture: str = "llama", *, dtype: str = "F32", shards: int = 1, seed: int = 0, **changes: Any) -> Path:
    """A Hugging Face folder with a random toy model (no tokenizer), in `shards` files; `changes` go to config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    config = toy_config(
        architecture, torch_dtype={"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}[dtype], **changes
    )
    (folder / "config.json").write_text(json.dumps(config))
    tensors = fused(config, toy_tensors(config, seed))
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors, dtype)
        return folder
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {key: tensors[key] for key in sorted(tensors)[shard::shards]}
        write_safetensors(folder / name, part, dtype)
        weight_map |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp", "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps", "w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps",
}  # fmt: skip

GEMMA_GGUF_NAMES = {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip


def gguf_name(name: str, architecture: str = "llama") -> str:
    """The GGUF name of a tensor with a Hugging Face name."""
    stem, kind = name.rsplit(".", 1)
    if not stem.startswith("model.layers."):
        return f"{GGUF_NAMES[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    if ".experts." in part:
        part = part.rsplit(".", 1)[1]
    names = GGUF_NAMES | (GEMMA_GGUF_NAMES if architecture in GEMMAS else {})
    return f"blk.{layer}.{names[part]}.{kind}"


def interleave_heads(values: Array, heads: int) -> Array:
    """Rows of each head as the converters of the llama architecture store them: first halves and second halves alternate."""
    return values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def make_gguf(
    path: Path,
    architecture: str = "llama",
    *,
    matrix_type: str = "F32",
    seed: int = 0,
    split_max_tensors: int = 0,
    keys: Mapping[str, Any] | None = None,
    extra: Mapping[str, npt.NDArray[np.float32]] | None = None,
    tensors_of: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """The same toy model as a GGUF file, written by the gguf package; returns the (first) file.

    `matrix_type`: a type the package can quantise to. `keys`: further metadata. `extra`: further F32 tensors under their GGUF names.
    `tensors_of`: changes to the configuration that the tensors are made from, but not what the file says.
    With `split_max_tensors` the model is split into files of that many tensors.
    """
    import gguf

    config = toy_config(architecture, **changes)
    llama = architecture in ("llama", "mixtral")  # as converters name both
    writer = gguf.GGUFWriter(path, "llama" if llama else architecture.replace("_", ""), split_max_tensors=split_max_tensors)
    write_figures(writer, config)
    for key, value in (keys or {}).items():
        {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}[
            type(value)
        ](key, value)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, values in _stacked(fused(config, toy_tensors(config | dict(tensors_of or {}), seed))).items():
        part = name.split(".")[-2]
        if llama and part in heads:
            values = interleave_heads(values, heads[part])
        if part == "shared_expert_gate":
            values = values[0]
        if architecture in GEMMAS and name.endswith("norm.weight"):
            values = values + np.float32(1)
        stored_name = gguf_name(name, architecture)
        kind = gguf.GGMLQuantizationType["F32" if values.ndim == 1 or stored_name.endswith("ffn_gate_inp.weight") else matrix_type]
        writer.add_tensor(stored_name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return next(iter(sorted(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))), path) if split_max_tensors else path


def _stacked(tensors: Mapping[str, npt.NDArray[np.float32]]) -> dict[str, npt.NDArray[np.float32]]:
    """The same tensors, matrices of a layer's experts as one of three dimensions under the first expert's name."""
    stacks: dict[str, list[npt.NDArray[np.float32]]] = {}
    for name, values in tensors.items():
        stacks.setdefault(re.sub(r"experts\.\d+", "experts.0", name), []).append(values)
    return {name: np.stack(values) if ".experts." in name else values[0] for name, values in stacks.items()}


def write_figures(writer: Any, config: Mapping[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    _write_mixture(writer, config)
    if config["model_type"] in GEMMAS:
        writer.add_sliding_window(config["sliding_window"])
    size = config["vocab_size"]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(size - 3)])
    writer.add_token_scores([0.0] * size)
    writer.add_token_types([2, 3, 3] + [6] * (size - 3))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def _write_mixture(writer: Any, config: Mapping[str, Any]) -> None:
    if experts := config.get("num_local_experts", config.get("num_experts")):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])


# The kinds of GGUF metadata values, for raw files.
U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_LAYOUTS = {U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", F32: "<f", BOOL: "<B", U64: "<Q", I64: "<q", F64: "<d"}


def gguf_string(text: str | bytes) -> bytes:
    """A GGUF string."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def gguf_value(kind: int, value: Any) -> bytes:
    """The bytes of a metadata value without its kind; an array is given as (element kind, list)."""
    if kind == STRING:
        return gguf_string(value)
    if kind == ARRAY:
        element, items = value
        return struct.pack("<IQ", element, len(items)) + b"".join(gguf_value(element, item) for item in items)
    return struct.pack(_LAYOUTS[kind], value)


def gguf_bytes(
    pairs: Iterable[tuple[str | bytes, int, Any]] = (),
    tensors: Iterable[tuple[str | bytes, Sequence[int], int, int]] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    counts: tuple[int, int] | None = None,
    alignment: int = 32,
) -> bytes:
    """A raw GGUF file. Pairs are (key, kind, value), or (key, kind, bytes taken as they are); tensors are (name, sizes with the row length
    first, type number, offset); `counts` overrides the numbers of tensors and pairs in the header."""
    pairs, tensors = list(pairs), list(tensors)
    numbers = counts or (len(tensors), len(pairs))
    raw = b"GGUF" + struct.pack("<IQQ", version, *numbers)
    for key, kind, value in pairs:
        ready = isinstance(value, bytes) and kind != STRING
        raw += gguf_string(key) + struct.pack("<I", kind) + (value if ready else gguf_value(kind, value))
    for name, sizes, type_id, offset in tensors:
        raw += gguf_string(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, type_id, offset)
    return raw + b"\0" * (-len(raw) % alignment) + data
