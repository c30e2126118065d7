"""State memory of the reference backend."""

from __future__ import annotations

import numpy as np

from homenode.compute.ops import StateGeometry


class ReferenceStateMemory:
    """Of each layer the last inputs of its convolution [slots, taps, channels] and its matrices [slots, heads,
    key_width, value_width], float32.
    """

    def __init__(self, geometry: StateGeometry, slots: int) -> None:
        self.geometry = geometry
        self.slots = slots
        self.tails = [np.zeros((slots, layer.taps, layer.channels), np.float32) for layer in geometry.layers]
        self.matrices = [
            np.zeros((slots, layer.heads, layer.key_width, layer.value_width), np.float32) for layer in geometry.layers
        ]

    @property
    def nbytes(self) -> int:
        """Bytes really held."""
        return sum(kept.nbytes for kept in (*self.tails, *self.matrices))
