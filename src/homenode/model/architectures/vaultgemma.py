"""VaultGemma: Gemma 2 without the norms behind attention and MLP, which leaves Gemma's block."""

from __future__ import annotations

from homenode.model.architectures import gemma, gemma2

_LAYER = "model.layers.{layer}."


ARCHITECTURE = gemma2.ARCHITECTURE.of_class(
    "vaultgemma",
    "VaultGemmaForCausalLM",
    harmless=gemma2.HARMLESS,
    modules={_LAYER + "pre_feedforward_layernorm": _LAYER + "post_attention_layernorm"},
    parameters=gemma.PARAMETERS,
)
