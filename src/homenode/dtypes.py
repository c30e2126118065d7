"""The number formats of model files: name, elements and bytes of a block, and the number GGUF gives each.

Block layouts are written down where they are decoded (csrc/quant). Sources: the GGUF specification, the safetensors
format page.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DType:
    """A storage format. `block` elements of a row are stored together in `bytes` bytes. `gguf_id` is -1 where GGUF has
    no such type."""

    name: str
    block: int
    bytes: int
    gguf_id: int

    def row_bytes(self, elements: int) -> int:
        """Bytes of a row of `elements`; ValueError when a row would end inside a block."""
        if elements % self.block:
            raise ValueError(f"{self.name} stores blocks of {self.block}; a row of {elements} would end inside one")
        return elements // self.block * self.bytes


_ALL = (
    DType("F32", 1, 4, 0), DType("F16", 1, 2, 1), DType("BF16", 1, 2, 30), DType("F64", 1, 8, 28),
    DType("I8", 1, 1, 24), DType("I16", 1, 2, 25), DType("I32", 1, 4, 26), DType("I64", 1, 8, 27),
    DType("U8", 1, 1, -1), DType("U16", 1, 2, -1), DType("U32", 1, 4, -1), DType("U64", 1, 8, -1), DType("BOOL", 1, 1,
    -1),
    DType("F8_E4M3", 1, 1, -1), DType("F8_E5M2", 1, 1, -1), DType("F8_E8M0", 1, 1, -1),
    DType("Q4_0", 32, 18, 2), DType("Q4_1", 32, 20, 3), DType("Q5_0", 32, 22, 6), DType("Q5_1", 32, 24, 7),
    DType("Q8_0", 32, 34, 8), DType("Q8_1", 32, 36, 9),
    DType("Q2_K", 256, 84, 10), DType("Q3_K", 256, 110, 11), DType("Q4_K", 256, 144, 12), DType("Q5_K", 256, 176, 13),
    DType("Q6_K", 256, 210, 14), DType("Q8_K", 256, 292, 15),
    DType("IQ2_XXS", 256, 66, 16), DType("IQ2_XS", 256, 74, 17), DType("IQ3_XXS", 256, 98, 18), DType("IQ1_S", 256, 50,
    19),
    DType("IQ4_NL", 32, 18, 20), DType("IQ3_S", 256, 110, 21), DType("IQ2_S", 256, 82, 22), DType("IQ4_XS", 256, 136,
    23),
    DType("IQ1_M", 256, 56, 29), DType("TQ1_0", 256, 54, 34), DType("TQ2_0", 256, 66, 35), DType("MXFP4", 32, 17, 39),
    DType("NVFP4", 64, 36, 40), DType("Q1_0", 128, 18, 41), DType("Q2_0", 64, 18, 42),
)  # fmt: skip

BY_NAME: dict[str, DType] = {t.name: t for t in _ALL}
BY_GGUF_ID: dict[int, DType] = {t.gguf_id: t for t in _ALL if t.gguf_id >= 0}
