"""Models of `benchmarks.shapes` as GGUF files that other engines read too, with a vocabulary of meaningless words.

Every tensor has random blocks of its format, the same ones from the start of each; another engine may want them at
places of its own, so a file holds them all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from benchmarks.shapes import SHAPES, Shape, random_values
from homenode.dtypes import BY_NAME

# What a file is called after its shape, as `benchmarks.compare` names formats.
FILE_FORMATS = {"qwen3.5-35b-a3b": "Q4_K_M", "gpt-oss-20b": "MXFP4", "deepseek-v2-lite": "Q4_0"}
_ARCHITECTURES = {"qwen3.5-35b-a3b": "qwen35moe", "gpt-oss-20b": "gpt-oss", "deepseek-v2-lite": "deepseek2"}
# llama.cpp takes queries that are not compressed for granted by this count of layers.
_LAYERS = {"deepseek-v2-lite": 27}
Named = tuple[str, tuple[int, ...]]  # a tensor's name and its lengths, rows before columns


def write_shape(name: str, folder: Path, **sizes: int) -> Path:
    """The file of a shape in `folder`: 2.6 to 9 gigabytes. `sizes`: fields of its configuration that are others;
    with `num_nextn_predict_layers` 1 a block that predicts is behind the layers of Qwen 3.5.
    """
    shape, path = SHAPES[name], folder / f"{name}-{FILE_FORMATS[name]}.gguf"
    config = {**shape.config, "num_hidden_layers": _LAYERS.get(name, shape.config["num_hidden_layers"]), **sizes}
    writer = gguf.GGUFWriter(path, _ARCHITECTURES[name])
    add_figures(writer, _metadata(name, config))
    add_vocabulary(writer, config["vocab_size"])
    tensors = _TENSORS[name](config)
    write_tensors(writer, [(tensor, lengths, _format_of(shape, tensor, lengths)) for tensor, lengths in tensors])
    return path


def add_figures(writer: gguf.GGUFWriter, figures: Mapping[str, Any]) -> None:
    """Write key-value pairs; whole numbers as unsigned ones of 32 bits."""
    for key, value in figures.items():
        given = gguf.GGUFValueType.get_type(value)
        writer.add_key_value(key, value, gguf.GGUFValueType.UINT32 if given is gguf.GGUFValueType.INT32 else given)


def write_tensors(writer: gguf.GGUFWriter, tensors: Iterable[tuple[str, tuple[int, ...], str]]) -> None:
    """Write the file: what was added, then random tensors of these names, lengths and formats."""
    stored = []
    for tensor, lengths, format in tensors:
        dtype = BY_NAME[format]
        size = math.prod(lengths[:-1]) * dtype.row_bytes(lengths[-1])
        stored.append((dtype, size))
        kind = gguf.GGMLQuantizationType[dtype.name]
        raw = gguf.quants.quant_shape_to_byte_shape(lengths, kind) if dtype.name != "F32" else lengths
        kept = np.dtype(np.float32) if dtype.name == "F32" else np.dtype(np.uint8)
        writer.add_tensor_info(tensor, raw, kept, size, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    assert writer.fout is not None
    opened = writer.fout[0]
    writer.write_padding(opened, opened.tell())
    values = {
        dtype: random_values(dtype, max(size for kind, size in stored if kind is dtype) // dtype.bytes * dtype.block)
        for dtype in dict.fromkeys(kind for kind, _ in stored)
    }
    for dtype, size in stored:
        opened.write(memoryview(values[dtype])[:size])
        writer.write_padding(opened, size)
    writer.close()


def _format_of(shape: Shape, tensor: str, lengths: tuple[int, ...]) -> str:
    """As `benchmarks.shapes` has it: float32 for vectors, routers, and rows that end within a block."""
    key = {"token_embd.weight": "embed", "output.weight": "lm_head"}.get(tensor, "expert" if "_exps" in tensor else "")
    found = next(name for start, name in shape.formats.items() if key.startswith(start))
    plain = len(lengths) == 1 or "ffn_gate_inp" in tensor or "conv1d" in tensor or tensor.endswith("bias")
    return "F32" if plain or lengths[-1] % BY_NAME[found].block else found


def add_vocabulary(writer: gguf.GGUFWriter, size: int, marks: Sequence[str] = ()) -> None:
    """Write a vocabulary of so many words. `marks`: tokens that stand for themselves, such as one for a picture."""
    letters = list(gguf.vocab.bytes_to_unicode().values()) if hasattr(gguf.vocab, "bytes_to_unicode") else []
    begin = len(letters) + len(marks)
    words = [*letters, *marks, *(f"<w{number}>" for number in range(size - begin))]
    kinds = [gguf.TokenType.NORMAL] * size
    kinds[len(letters) : begin] = [gguf.TokenType.USER_DEFINED] * len(marks)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_types(kinds)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(size - 1)
    writer.add_bos_token_id(size - 1)


def _metadata(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    architecture, experts = _ARCHITECTURES[name], config.get("num_local_experts") or config.get("num_experts")
    head = config.get("head_dim", 0)
    figures: dict[str, Any] = {
        "block_count": config["num_hidden_layers"] + config.get("num_nextn_predict_layers", 0),
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config.get("intermediate_size", config["moe_intermediate_size"] if not head else 512),
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 10000.0,
        "expert_count": experts or config["n_routed_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config.get("moe_intermediate_size") or config["intermediate_size"],
    }
    match name:
        case "gpt-oss-20b":
            figures["attention.sliding_window"] = config["sliding_window"]
        case "qwen3.5-35b-a3b":
            figures |= {
                "expert_shared_feed_forward_length": config["shared_expert_intermediate_size"],
                "ssm.conv_kernel": config["linear_conv_kernel_dim"],
                "ssm.state_size": config["linear_key_head_dim"],
                "ssm.group_count": config["linear_num_key_heads"],
                "ssm.time_step_rank": config["linear_num_value_heads"],
                "ssm.inner_size": config["linear_num_value_heads"] * config["linear_value_head_dim"],
                "full_attention_interval": 4,
                "rope.dimension_count": head // 4,
                "rope.dimension_sections": [11, 11, 10, 0],
            }
            if blocks := config.get("num_nextn_predict_layers"):
                figures["nextn_predict_layers"] = blocks
        case _:
            latent, rotated = config["kv_lora_rank"], config["qk_rope_head_dim"]
            figures |= {
                "attention.head_count_kv": 1,
                "attention.kv_lora_rank": latent,
                "attention.key_length": latent + rotated,
                "attention.value_length": latent,
                "attention.key_length_mla": config["qk_nope_head_dim"] + rotated,
                "attention.value_length_mla": config["v_head_dim"],
                "rope.dimension_count": rotated,
                "vocab_size": config["vocab_size"],
                "leading_dense_block_count": config["first_k_dense_replace"],
                "expert_shared_count": config["n_shared_experts"],
                "expert_weights_scale": 1.0,
                "expert_weights_norm": False,
                "expert_gating_func": 1,
            }
    return {f"{architecture}.{key}": value for key, value in figures.items()}


def _ends(config: Mapping[str, Any]) -> Iterator[Named]:
    hidden, words = config["hidden_size"], config["vocab_size"]
    yield "token_embd.weight", (words, hidden)
    yield "output_norm.weight", (hidden,)
    yield "output.weight", (words, hidden)


def _experts(block: str, hidden: int, experts: int, inner: int) -> Iterator[Named]:
    yield f"{block}.ffn_gate_inp.weight", (experts, hidden)
    yield f"{block}.ffn_gate_exps.weight", (experts, inner, hidden)
    yield f"{block}.ffn_up_exps.weight", (experts, inner, hidden)
    yield f"{block}.ffn_down_exps.weight", (experts, hidden, inner)


def _dense(block: str, hidden: int, inner: int, after: str = "") -> Iterator[Named]:
    yield f"{block}.ffn_gate{after}.weight", (inner, hidden)
    yield f"{block}.ffn_up{after}.weight", (inner, hidden)
    yield f"{block}.ffn_down{after}.weight", (hidden, inner)


def _qwen(config: Mapping[str, Any]) -> Iterator[Named]:
    yield from _ends(config)
    hidden, heads, head = config["hidden_size"], config["num_attention_heads"], config["head_dim"]
    kv = config["num_key_value_heads"] * head
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = config["linear_num_value_heads"]
    wide = values * config["linear_value_head_dim"]
    layers = config["num_hidden_layers"]
    for layer in range(layers + config.get("num_nextn_predict_layers", 0)):
        block = f"blk.{layer}"
        yield f"{block}.attn_norm.weight", (hidden,)
        yield f"{block}.post_attention_norm.weight", (hidden,)
        if layer >= layers:
            yield f"{block}.nextn.eh_proj.weight", (hidden, 2 * hidden)
            for norm in ("enorm", "hnorm", "shared_head_norm"):
                yield f"{block}.nextn.{norm}.weight", (hidden,)
        if layer % 4 == 3 or layer >= layers:
            yield f"{block}.attn_q.weight", (2 * heads * head, hidden)
            yield f"{block}.attn_k.weight", (kv, hidden)
            yield f"{block}.attn_v.weight", (kv, hidden)
            yield f"{block}.attn_output.weight", (hidden, heads * head)
            yield f"{block}.attn_q_norm.weight", (head,)
            yield f"{block}.attn_k_norm.weight", (head,)
        else:
            yield f"{block}.attn_qkv.weight", (2 * keys + wide, hidden)
            yield f"{block}.attn_gate.weight", (wide, hidden)
            yield f"{block}.ssm_conv1d.weight", (2 * keys + wide, config["linear_conv_kernel_dim"])
            yield f"{block}.ssm_alpha.weight", (values, hidden)
            yield f"{block}.ssm_beta.weight", (values, hidden)
            yield f"{block}.ssm_a", (values,)
            yield f"{block}.ssm_dt.bias", (values,)
            yield f"{block}.ssm_norm.weight", (config["linear_value_head_dim"],)
            yield f"{block}.ssm_out.weight", (hidden, wide)
        yield from _experts(block, hidden, config["num_experts"], config["moe_intermediate_size"])
        yield from _dense(block, hidden, config["shared_expert_intermediate_size"], "_shexp")
        yield f"{block}.ffn_gate_inp_shexp.weight", (hidden,)


def _gpt_oss(config: Mapping[str, Any]) -> Iterator[Named]:
    yield from _ends(config)
    hidden, heads, head = config["hidden_size"], config["num_attention_heads"], config["head_dim"]
    kv, experts, inner = config["num_key_value_heads"] * head, config["num_local_experts"], config["intermediate_size"]
    for layer in range(config["num_hidden_layers"]):
        block = f"blk.{layer}"
        yield f"{block}.attn_norm.weight", (hidden,)
        yield f"{block}.post_attention_norm.weight", (hidden,)
        for part, rows, columns in (
            ("q", heads * head, hidden),
            ("k", kv, hidden),
            ("v", kv, hidden),
            ("output", hidden, heads * head),
        ):
            yield f"{block}.attn_{part}.weight", (rows, columns)
            yield f"{block}.attn_{part}.bias", (rows,)
        yield f"{block}.attn_sinks.weight", (heads,)
        yield from _experts(block, hidden, experts, inner)
        yield f"{block}.ffn_gate_inp.bias", (experts,)
        for part, rows in (("gate", inner), ("up", inner), ("down", hidden)):
            yield f"{block}.ffn_{part}_exps.bias", (experts, rows)


def _deepseek(config: Mapping[str, Any]) -> Iterator[Named]:
    yield from _ends(config)
    hidden, heads, latent = config["hidden_size"], config["num_attention_heads"], config["kv_lora_rank"]
    plain, rotated, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    inner = config["moe_intermediate_size"]
    for layer in range(config["num_hidden_layers"]):
        block = f"blk.{layer}"
        yield f"{block}.attn_norm.weight", (hidden,)
        yield f"{block}.ffn_norm.weight", (hidden,)
        yield f"{block}.attn_q.weight", (heads * (plain + rotated), hidden)
        yield f"{block}.attn_kv_a_mqa.weight", (latent + rotated, hidden)
        yield f"{block}.attn_kv_a_norm.weight", (latent,)
        yield f"{block}.attn_k_b.weight", (heads, latent, plain)
        yield f"{block}.attn_v_b.weight", (heads, value, latent)
        yield f"{block}.attn_output.weight", (hidden, heads * value)
        if layer < config["first_k_dense_replace"]:
            yield from _dense(block, hidden, config["intermediate_size"])
        else:
            yield from _experts(block, hidden, config["n_routed_experts"], inner)
            yield from _dense(block, hidden, config["n_shared_experts"] * inner, "_shexp")


_TENSORS = {"qwen3.5-35b-a3b": _qwen, "gpt-oss-20b": _gpt_oss, "deepseek-v2-lite": _deepseek}
