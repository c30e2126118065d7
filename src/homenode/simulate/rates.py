"""`host.plan.numa.step_cost` as coefficients, so that the seconds of a step are a handful of multiplications. Pure.

`step_time` is, on given nodes, the larger of a multiple of the bytes and a multiple of the operations, and linear in
everything else.
"""

from __future__ import annotations

from dataclasses import dataclass

from homenode.host.plan.numa.machine_speed import MachineSpeed
from homenode.host.plan.numa.step_cost import EngineKind, Spread, StepWork, step_time

_MANY = 1 << 40  # tokens: then unpacking weights costs nothing for each


@dataclass(frozen=True, slots=True)
class Rates:
    """Seconds: `byte` read; `operation` of a row that many tokens share; `unpacking` for each operation of one token,
    once a row however many share it; `exchange` of a token's activations of one layer of one byte each
    (`exchange_byte`) and beside that (`exchange_layer`); `barrier`."""

    byte: float
    operation: float
    unpacking: float
    exchange_layer: float
    exchange_byte: float
    barrier: float

    @classmethod
    def of(cls, machine: MachineSpeed, spread: Spread, kind: EngineKind) -> Rates:
        """Return the rates of these nodes under this spread."""

        def total(
            byte: float = 0.0,
            ops: float = 0.0,
            tokens: int = 0,
            layers: int = 0,
            exchanged: float = 0.0,
            barriers: float = 0.0,
        ) -> float:
            return step_time(machine, spread, StepWork(byte, ops, tokens, layers, exchanged, barriers), kind).total

        operation = total(ops=1.0, tokens=_MANY)
        return cls(
            byte=total(byte=1.0),
            operation=operation,
            unpacking=max(0.0, total(ops=1.0, tokens=1) - operation),
            exchange_layer=total(tokens=1, layers=1),
            exchange_byte=total(exchanged=1.0),
            barrier=total(barriers=1.0),
        )

    def multiplying(self, operations: float, tokens: float) -> float:
        """Seconds for `operations` of each of `tokens` tokens."""
        return operations * (tokens * self.operation + self.unpacking) if tokens else 0.0
