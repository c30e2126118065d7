"""Qwen 3 MoE: Qwen 3's block with a mixture of experts; some layers may have an MLP instead."""

from __future__ import annotations

from homenode.model.architectures import moe, qwen3
from homenode.model.architectures.parameters import Architecture

PARAMETERS = (*qwen3.PARAMETERS, *moe.QWEN_MOE)

QWEN3_MOE = Architecture("qwen3_moe", PARAMETERS, qwen3.forward)
