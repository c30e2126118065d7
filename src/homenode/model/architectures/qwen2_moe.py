"""Qwen 2 MoE (and 1.5): Qwen 2's block with a mixture of experts and one expert that every token uses; some layers may have an MLP instead."""

from __future__ import annotations

from homenode.model.architectures import mixtral, moe, qwen2
from homenode.model.architectures.parameters import Architecture

PARAMETERS = (*qwen2.PARAMETERS, *moe.QWEN_MOE, *moe.SHARED_EXPERT)

QWEN2_MOE = Architecture("qwen2_moe", PARAMETERS, mixtral.forward)
