"""The seconds that a step takes each stage: bytes, operations, meetings, links. Pure.

A worker reads its weights and the keys and values of all sequences in the step, and multiplies meanwhile; the ranks of
a stage then wait for the slowest and add up what each has; the stage's rows go on to the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

from homenode.engine.step import Step
from homenode.host.placement.weight_cost import ModelWork
from homenode.simulate.rates import Rates

FLOAT_COST = (
    4.0  # of a CPU: attention multiplies float32, weights bytes, of which an instruction takes four times as many
)


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What a step asks of any worker: tokens; rows of logits; sequences' positions to be read; positions looked at, over
    all tokens; and sequences."""

    tokens: int
    rows: int
    read: int
    attended: int
    sequences: int = 1

    @classmethod
    def of(cls, step: Step) -> StepLoad:
        """Of a real step of the scheduler."""
        tokens = rows = read = attended = 0
        for item in step.items:
            count, end = item.count, item.start + item.count
            tokens += count
            read += end
            attended += count * (item.start + end + 1) // 2
            rows += item.sample
        return cls(tokens, rows, read, attended, len(step.items))


@dataclass(frozen=True, slots=True)
class WorkerWork:
    """What one worker computes. `model`: its part, whose figures of a token leave out the output matrix and what comes
    behind the last attention. `output_bytes`, `output_operations`: of those, 0 where another stage has them; a row of
    logits multiplies with all of them. `attention`: operations of a token and a position it looks at. `state_bytes`: of a
    sequence, read and written in each step where layers keep a state; `state_operations`: of a token with it."""

    model: ModelWork
    output_bytes: float
    output_operations: float
    attention: float
    state_bytes: float = 0.0
    state_operations: float = 0.0


@dataclass(frozen=True, slots=True)
class CommonExperts:
    """Experts that several engines keep in common. `besides`: bytes of the other weights. `byte`: seconds of a byte of
    experts, whoever keeps it."""

    besides: float
    byte: float


@dataclass(frozen=True, slots=True)
class WorkerCost:
    """A worker's work at its speed. `fixed`: seconds of every step besides. `float_cost`: of an operation of attention,
    in operations of weights. `common`: where experts are not all its own."""

    rates: Rates
    work: WorkerWork
    fixed: float = 0.0
    float_cost: float = FLOAT_COST
    common: CommonExperts | None = None

    def seconds(self, load: StepLoad) -> float:
        """One step."""
        rates, work, model = self.rates, self.work, self.work.model
        read = model.read_bytes(load.tokens) + model.kv_bytes_per_token * load.read
        read += work.state_bytes * load.sequences
        if not load.rows:
            read -= work.output_bytes
        multiply = rates.multiplying(model.flops_per_token, load.tokens) + rates.multiplying(
            work.output_operations, load.rows
        )
        floats = work.attention * load.attended + work.state_operations * load.tokens
        multiply += self.float_cost * rates.operation * floats
        across = load.tokens * model.layers * (rates.exchange_layer + rates.exchange_byte * model.activation_bytes)
        reading = read * rates.byte
        if self.common is not None:
            reading += max(0.0, model.read_bytes(load.tokens) - self.common.besides) * (self.common.byte - rates.byte)
        return max(reading, multiply) + across + rates.barrier * model.layers * model.barriers_per_layer + self.fixed


@dataclass(frozen=True, slots=True)
class Link:
    """A way for rows: seconds until the first byte is there, and of each byte."""

    latency: float = 0.0
    byte: float = 0.0

    def seconds(self, size: float) -> float:
        """Of one message."""
        return self.latency + size * self.byte


@dataclass(frozen=True, slots=True)
class StageCost:
    """The ranks of a stage. `sums`: exchanges in a step, of `row_bytes` for each token, over `link`. `onward`: the way
    of its rows to the next stage."""

    workers: tuple[WorkerCost, ...]
    row_bytes: int
    sums: int = 0
    link: Link = Link()
    onward: Link = Link()

    def seconds(self, load: StepLoad) -> float:
        """One step, until its rows can be sent on."""
        computing = max(worker.seconds(load) for worker in self.workers)
        return computing + (self.sums * self.link.seconds(load.tokens * self.row_bytes) if self.sums else 0.0)

    def handing_on(self, load: StepLoad) -> float:
        """Until its rows are where the next stage can read them."""
        return self.onward.seconds(load.tokens * self.row_bytes)
