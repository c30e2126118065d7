"""The NumPy backend: slow, plain, and the oracle every other backend is compared with."""

from homenode.compute.reference.backend import ReferenceBackend, ReferenceProgram
from homenode.compute.reference.ranks import ThreadRanks

__all__ = ["ReferenceBackend", "ReferenceProgram", "ThreadRanks"]
