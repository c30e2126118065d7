"""The torch backend: models on accelerators that torch knows, and on its own idea of a CPU. The only package that
imports torch.
"""

from homenode.compute.torch.backend import TorchBackend, open_backend
from homenode.compute.torch.program import TorchProgram, TorchRows

__all__ = ["TorchBackend", "TorchProgram", "TorchRows", "open_backend"]
