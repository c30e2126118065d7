"""The NumPy backend: slow, plain, and the oracle every other backend is compared with."""

from homenode.compute.reference.backend import ReferenceBackend, ReferenceProgram

__all__ = ["ReferenceBackend", "ReferenceProgram"]
