"""Mistral: Llama's block whose attention may be limited to a sliding window, which `blocks.attend` takes from the spec."""

from __future__ import annotations

from homenode.model.architectures import llama
from homenode.model.architectures.parameters import Architecture

MISTRAL = Architecture("mistral", llama.PARAMETERS, llama.forward)
