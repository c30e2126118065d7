"""The architectures there are. A new one is a file like its neighbours and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from homenode.errors import UnsupportedError
from homenode.model.architectures.gemma2 import GEMMA2
from homenode.model.architectures.gemma3 import GEMMA3
from homenode.model.architectures.llama import LLAMA
from homenode.model.architectures.mistral import MISTRAL
from homenode.model.architectures.mixtral import MIXTRAL
from homenode.model.architectures.parameters import Architecture
from homenode.model.architectures.phi3 import PHI3
from homenode.model.architectures.qwen2 import QWEN2
from homenode.model.architectures.qwen2_moe import QWEN2_MOE
from homenode.model.architectures.qwen3 import QWEN3
from homenode.model.architectures.qwen3_moe import QWEN3_MOE

_ALL = (LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE, GEMMA2, GEMMA3, PHI3)
ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType({a.name: a for a in _ALL})


def architecture_of(name: str) -> Architecture:
    """The architecture `ModelSpec.architecture` names; UnsupportedError lists the known ones."""
    if name not in ARCHITECTURES:
        raise UnsupportedError(
            f"architecture {name!r} is not supported; known: {', '.join(ARCHITECTURES)}", architecture=name
        )
    return ARCHITECTURES[name]
