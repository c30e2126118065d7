"""The types in which keys and values are kept: what --kv-cache-dtype may say, and what each takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class KvFormat:
    """A way to keep keys and values: bits of an element, and bytes of the scale that a key and a value of each token
    and head have besides; 0: they have none.
    """

    name: str
    element_bits: int
    scale_bytes: int = 0

    @property
    def has_scales(self) -> bool:
        """Return whether what is kept of a token is more than its elements, so that layers of unlike shapes are not
        cells alike.
        """
        return self.scale_bytes > 0

    def vector_bytes(self, elements: int) -> int:
        """Bytes of a key or a value of so many elements, its scale among them."""
        return -(-elements * self.element_bits // 8) + self.scale_bytes


KV_TYPES: Final = {
    kind.name: kind
    for kind in (
        KvFormat("f32", 32),
        KvFormat("bf16", 16),
        # The nearest whole numbers of at most 127, times one float32 scale.
        KvFormat("int8", 8, scale_bytes=4),
    )
}
KV_CHOICES: Final = ("auto", *KV_TYPES)  # of --kv-cache-dtype
SMALLEST: Final = min(KV_TYPES.values(), key=lambda kind: kind.element_bits).name
NAMED: Final = f"{', '.join([*KV_TYPES][:-1])} or {[*KV_TYPES][-1]}"
