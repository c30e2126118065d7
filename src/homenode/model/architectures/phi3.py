"""Phi 3 and 4: Llama's forward function. The matrices that their files hold in one are taken apart where they are read."""

from __future__ import annotations

from homenode.model.architectures import blocks
from homenode.model.architectures.llama import forward
from homenode.model.architectures.parameters import Architecture

PHI3 = Architecture("phi3", (*blocks.EMBEDDING_AND_HEAD, *blocks.ATTENTION, *blocks.GATED_MLP), forward)
