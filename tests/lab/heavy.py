"""A model of some tens of MiB with random weights, so that per cent of its memory mean something; made in a second where the tests run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.checkpoints import gguf_name, toy_config, write_figures

CONFIG = toy_config(
    hidden_size=512, intermediate_size=2048, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, head_dim=64, vocab_size=2048
)
PROMPTS = ([1, 17, 300, 5, 44], [1, 1999, 7, 7, 250, 90, 12, 33, 801])


def matrices() -> dict[str, tuple[int, int]]:
    """Rows and columns of each matrix by its Hugging Face name; each takes two bytes a value."""
    hidden, inner, head = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["head_dim"]
    queries, keys = CONFIG["num_attention_heads"] * head, CONFIG["num_key_value_heads"] * head
    found = {"model.embed_tokens.weight": (CONFIG["vocab_size"], hidden), "lm_head.weight": (CONFIG["vocab_size"], hidden)}
    for layer in range(CONFIG["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        found |= {f"{at}.self_attn.{name}_proj.weight": (rows, hidden) for name, rows in (("q", queries), ("k", keys), ("v", keys))}
        found |= {f"{at}.self_attn.o_proj.weight": (hidden, queries), f"{at}.mlp.down_proj.weight": (hidden, inner)}
        found |= {f"{at}.mlp.{name}_proj.weight": (inner, hidden) for name in ("gate", "up")}
    return found


MATRIX_BYTES = sum(2 * rows * columns for rows, columns in matrices().values())


def make_heavy(path: Path) -> Path:
    """The model as a GGUF file of BF16 matrices: bytes drawn at random are numbers there once the exponent is set, with no arithmetic."""
    import gguf

    rng = np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, "llama")
    write_figures(writer, CONFIG)
    for name, (rows, columns) in matrices().items():
        drawn = np.frombuffer(rng.bytes(2 * rows * columns), np.uint16).reshape(rows, columns)
        small = drawn & 0x807F | 0x3D00  # a random sign and mantissa, of 1/32 in size
        writer.add_tensor(gguf_name(name), small.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    ones = np.ones(CONFIG["hidden_size"], np.float32)
    norms = [
        f"model.layers.{i}.{part}.weight"
        for i in range(CONFIG["num_hidden_layers"])
        for part in ("input_layernorm", "post_attention_layernorm")
    ]
    for name in (*norms, "model.norm.weight"):
        writer.add_tensor(gguf_name(name), ones)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
