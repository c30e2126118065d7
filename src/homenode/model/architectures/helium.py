"""Helium (Kyutai): Llama's block, whose rope turns neighbours."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import ernie4_5, llama
from homenode.model.config.folder_config import Defaults

DEFAULTS = Defaults(
    max_position=4096, heads=20, kv_heads=20, head_dim=128, vocab=48000, bos_id=1, eos_id=2, norm_eps=1e-8, theta=1e5,
    intermediate=7040, attention_bias=False, mlp_bias=False
)  # fmt: skip


ARCHITECTURE = llama.ARCHITECTURE.of_class(
    "helium",
    "HeliumForCausalLM",
    read=lambda config: replace(config.uniform_decoder(DEFAULTS), output_bias=False),
    forward=ernie4_5.forward,
)
