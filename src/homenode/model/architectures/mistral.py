"""Mistral: Llama's block without biases; attention may be limited to a sliding window, which `blocks.attend` takes from the spec."""

from __future__ import annotations

from homenode.model.architectures import blocks, llama
from homenode.model.architectures.parameters import Architecture

PARAMETERS = (*blocks.EMBEDDING_AND_HEAD, *blocks.ATTENTION, *blocks.GATED_MLP)

MISTRAL = Architecture("mistral", PARAMETERS, llama.forward)
