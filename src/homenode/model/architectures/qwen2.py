"""Qwen 2 and 2.5: Llama's block with biases on q, k and v; upper layers may use a sliding window (`ModelSpec.sliding_layers`)."""

from __future__ import annotations

from homenode.model.architectures import blocks, llama
from homenode.model.architectures.parameters import Architecture

PARAMETERS = (*blocks.EMBEDDING_AND_HEAD, *blocks.ATTENTION, *blocks.QKV_BIASES, *blocks.GATED_MLP)

QWEN2 = Architecture("qwen2", PARAMETERS, llama.forward)
