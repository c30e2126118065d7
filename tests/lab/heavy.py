"""A model of ten MiB with random weights, so that per cent of its memory mean something; made in a second where the
tests run.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.checkpoints import gguf_name, toy_config, write_figures

CONFIG = toy_config(
    hidden_size=1024,
    intermediate_size=4096,
    num_hidden_layers=1,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=128,
    vocab_size=1024,
)
PROMPTS = ([1, 17, 300], [1, 999, 7, 250])
SAID = ([979, 89, 173, 961, 1019], [380, 995, 128, 278, 550])  # what follows them, as the NumPy backend computed it
_BLOCK, _BLOCK_BYTES = 32, 18  # values of a block of Q4_0: a half-precision scale, and four bits each
_SCALE = np.array([0.01], np.float16).view(np.uint8)


def matrices() -> dict[str, tuple[int, int]]:
    """Rows and columns of each matrix by its Hugging Face name."""
    hidden, inner, head = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["head_dim"]
    queries, keys = CONFIG["num_attention_heads"] * head, CONFIG["num_key_value_heads"] * head
    found = {
        "model.embed_tokens.weight": (CONFIG["vocab_size"], hidden),
        "lm_head.weight": (CONFIG["vocab_size"], hidden),
    }
    for layer in range(CONFIG["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        found |= {
            f"{at}.self_attn.{name}_proj.weight": (rows, hidden)
            for name, rows in (("q", queries), ("k", keys), ("v", keys))
        }
        found |= {f"{at}.self_attn.o_proj.weight": (hidden, queries), f"{at}.mlp.down_proj.weight": (hidden, inner)}
        found |= {f"{at}.mlp.{name}_proj.weight": (inner, hidden) for name in ("gate", "up")}
    return found


MATRIX_BYTES = sum(rows * columns // _BLOCK * _BLOCK_BYTES for rows, columns in matrices().values())


def make_heavy(path: Path) -> Path:
    """The model as a GGUF file of Q4_0 matrices, the format that emulated processors compute fastest: random codes, and
    scales of one size.
    """
    import gguf

    rng = np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, "llama")
    write_figures(writer, CONFIG)
    for name, (rows, columns) in matrices().items():
        blocks = (
            np.frombuffer(rng.bytes(rows * columns // _BLOCK * _BLOCK_BYTES), np.uint8)
            .reshape(rows, columns // _BLOCK, _BLOCK_BYTES)
            .copy()
        )
        blocks[:, :, 0] = _SCALE[0]
        blocks[:, :, 1] = blocks[:, :, 1] & 0x80 | _SCALE[1]  # of either sign
        writer.add_tensor(gguf_name(name), blocks.reshape(rows, -1), raw_dtype=gguf.GGMLQuantizationType.Q4_0)
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
