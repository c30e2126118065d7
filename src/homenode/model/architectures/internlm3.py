"""InternLM 3: Llama's block under another class. GGUF files of it are those of Llama."""

from __future__ import annotations

from homenode.model.architectures import llama
from homenode.model.config.folder_config import Defaults

DEFAULTS = Defaults(
    max_position=32768, heads=32, kv_heads=2, head_dim=128, vocab=128512, bos_id=1, eos_id=2, norm_eps=1e-5,
    intermediate=10240, attention_bias=False, mlp_bias=False,
)  # fmt: skip
FIELDS = {"qkv_bias": "attention_bias", "bias": "mlp_bias"}


ARCHITECTURE = llama.ARCHITECTURE.of_class(
    "internlm3",
    "InternLM3ForCausalLM",
    read=lambda config: config.respelled(FIELDS).uniform_decoder(DEFAULTS),
    fields=DEFAULTS.fields | FIELDS.keys(),
    harmless=llama.ARCHITECTURE.folder.harmless,
)
