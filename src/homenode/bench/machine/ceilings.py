"""Ceilings of a machine, and the least time that given work takes on it. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

# The kind of product a kernel for this storage format needs. What is not listed holds integers of at most six bits.
_PATHS = {"F32": "f32", "F16": "f32", "BF16": "bf16"} | dict.fromkeys(("Q8_0", "IQ4_NL", "IQ4_XS", "INT8"), "int8")


def path_of(format: str) -> str:
    """The kind of multiply (a field of `Operations`) that weights kept in `format` are computed with: int8, int6, bf16
    or f32.

    IQ4_NL and IQ4_XS choose from bytes. Where bytes have a dot product of their own, int6 is as fast as int8.
    """
    return _PATHS.get(format, "int6")


@dataclass(frozen=True)
class Operations:
    """Multiplications and additions by kind of product; a multiply-add counts as two."""

    int8: float = 0.0
    bf16: float = 0.0
    f32: float = 0.0
    int6: float = 0.0

    @classmethod
    def of(cls, path: str, count: float) -> Operations:
        """`count` of one kind."""
        return cls(**{path: count})

    @property
    def total(self) -> float:
        """Return the sum of all kinds."""
        return self.int8 + self.bf16 + self.f32 + self.int6

    def __add__(self, other: Operations) -> Operations:
        return Operations(self.int8 + other.int8, self.bf16 + other.bf16, self.f32 + other.f32, self.int6 + other.int6)


@dataclass(frozen=True)
class Work:
    """Bytes that have to be read from memory and operations that have to be done."""

    bytes: float
    operations: Operations

    def __add__(self, other: Work) -> Work:
        return Work(self.bytes + other.bytes, self.operations + other.operations)


@dataclass(frozen=True)
class Ceilings:
    """Measured limits: `read` in bytes a second, the others in operations a second of each kind."""

    read: float
    int8: float
    bf16: float
    f32: float
    int6: float

    def read_seconds(self, work: Work) -> float:
        """The time reading takes."""
        return work.bytes / self.read

    def multiply_seconds(self, work: Work) -> float:
        """The time multiplying takes, one kind after the other: they are done by the same units."""
        done = work.operations
        return done.int8 / self.int8 + done.bf16 / self.bf16 + done.f32 / self.f32 + done.int6 / self.int6

    def seconds(self, work: Work) -> float:
        """The least time the work can take: reading and multiplying overlap at best."""
        return max(self.read_seconds(work), self.multiply_seconds(work))

    def limit(self, work: Work) -> str:
        """Return which of the two takes longer: `read` or `multiply`."""
        return "read" if self.read_seconds(work) >= self.multiply_seconds(work) else "multiply"

    def between(self, other: Ceilings) -> Ceilings:
        """The mean of two readings, for what ran between them."""
        return Ceilings(
            (self.read + other.read) / 2,
            (self.int8 + other.int8) / 2,
            (self.bf16 + other.bf16) / 2,
            (self.f32 + other.f32) / 2,
            (self.int6 + other.int6) / 2,
        )

    def to_json(self) -> dict[str, float]:
        """Return the figures in 1e9 a second, under names with units."""
        return {
            "read_gb_s": round(self.read / 1e9, 3),
            "int8_gops": round(self.int8 / 1e9, 2),
            "int6_gops": round(self.int6 / 1e9, 2),
            "bf16_gops": round(self.bf16 / 1e9, 2),
            "f32_gops": round(self.f32 / 1e9, 2),
        }
