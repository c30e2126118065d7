"""The shape of the built-in model."""

from __future__ import annotations

from transformers import LlamaConfig

VOCABULARY = 2048
CONTEXT = 512


def config(end_of_text: int, end: int) -> LlamaConfig:
    """A Llama of 2.9 million parameters. Every row is a multiple of 256 long, so every quantised type can hold every
    matrix. The rotary base is the default of all versions of transformers, 10000.
    """
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        attention_bias=False,
        mlp_bias=False,
        bos_token_id=end_of_text,
        eos_token_id=[end, end_of_text],
        pad_token_id=end_of_text,
    )
