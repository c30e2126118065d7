"""The seconds that a step takes each stage: bytes, operations, meetings, links. Pure.

A worker reads its weights and the keys and values of all sequences in the step, and multiplies meanwhile; the ranks of
a stage then wait for the slowest and add up what each has; the stage's rows go on to the next one. Where an indexer
chooses which tokens are attended to, keys and values of the chosen ones count, and of longer contexts what it reads
and multiplies to choose them.
"""

from __future__ import annotations

from dataclasses import dataclass

from homenode.engine.scheduler.steps.step_load import StepLoad
from homenode.host.plan.numa.weight_cost import ModelWork
from homenode.simulate.rates import Rates

FLOAT_COST = (
    4.0  # of a CPU: attention multiplies float32, weights bytes, of which an instruction takes four times as many
)


@dataclass(frozen=True, slots=True)
class IndexerWork:
    """The work that the indexers of one worker add. `chosen`: tokens that a layer looks at; `key_bytes`: what the KV
    memory keeps of a position for them; `operations`: of a token and a position that they score. `dense_bytes`,
    `dense_attention`: what is kept of a position in layers that attend to all, and operations of a token with it.
    """

    chosen: int
    key_bytes: float
    operations: float
    dense_bytes: float = 0.0
    dense_attention: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkerWork:
    """The work that one worker computes. `model`: its part, whose figures of a token leave out the output matrix and
    what comes behind the last attention. `output_bytes`, `output_operations`: of those, 0 where another stage has them;
    a row of logits multiplies with all of them. `attention`: operations of a token and a position it looks at.
    `state_bytes`: of a sequence, read and written in each step where layers keep a state; `state_operations`: of a
    token with it. `indexer`: of layers that have one, whose keys are among the bytes of a position.
    """

    model: ModelWork
    output_bytes: float
    output_operations: float
    attention: float
    state_bytes: float = 0.0
    state_operations: float = 0.0
    indexer: IndexerWork | None = None


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
        floats = work.attention * load.attended + work.state_operations * load.tokens
        if work.indexer is not None:
            read += work.indexer.key_bytes * (load.scanned - load.read)  # they count among those of a token
            read += work.indexer.dense_bytes * load.unread
            floats += work.indexer.operations * load.scored + work.indexer.dense_attention * load.unattended
        if not load.rows:
            read -= work.output_bytes
        multiply = rates.multiplying(model.flops_per_token, load.tokens) + rates.multiplying(
            work.output_operations, load.rows
        )
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
        """Return the seconds of one message."""
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

    @property
    def chosen(self) -> int | None:
        """Return how many tokens a layer looks at where indexers choose them; None: all."""
        found = (worker.work.indexer for worker in self.workers)
        return next((indexer.chosen for indexer in found if indexer is not None), None)

    def handing_on(self, load: StepLoad) -> float:
        """Return the seconds until its rows are where the next stage can read them."""
        return self.onward.seconds(load.tokens * self.row_bytes)
