"""What others have published about placement on several nodes, and what the cost model says of the same machines,
models and placements.

The rows are in docs/numa-published.json. Figures of machines are public specifications: channels x transfers x 8 bytes,
links x transfers x 2 bytes. An engine's shares of them are told from its speed before the change; what is fitted are
the constants, each with a physical meaning.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from homenode.host.plan.numa.machine_speed import MachineSpeed, NodeSpeed
from homenode.host.plan.numa.step_cost import EngineKind, Spread, at_home, on_one, round_robin, step_time
from homenode.host.plan.numa.weight_cost import ModelWork, load_of

RECORD = Path(__file__).resolve().parent.parent / "docs" / "numa-published.json"
NO_CHANGE = 1.10  # factors below it are no change: two runs of one build differ by as much
_FLOAT_BYTES = 4

Model = Callable[["Row"], float]


@dataclass(frozen=True, slots=True)
class Constants:
    """The same for all rows. The first three are fitted (benchmarks.numa_fit), the others known from elsewhere.

    links: share of a link's bandwidth that reading reaches. straggling: see EngineKind. handover_us: until the
    activations of a token and layer come from the other node, in an engine that splits the rows of every operation anew
    over all threads. transfer_ns, transfer_across_ns: of the line that a flat barrier counts on, from core to core of a
    socket and of two, as measured on Xeons of those years. slice_us: until a thread runs again that another one has
    displaced, where every hardware thread computes and nobody else has room (Linux gives slices of 3 to 4 ms).
    """

    links: float
    straggling: float
    handover_us: float
    transfer_ns: float
    transfer_across_ns: float
    slice_us: float


@dataclass(frozen=True, slots=True)
class Side:
    """Before or after. placement: `local`, `home` (each thread reads its own node), `scattered` or `interleave`, `one`
    (all on the first node)."""

    placement: str
    threads: int
    says: str
    calls_per_layer: int = 0
    call_us: float = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """One published pair of figures, with all that the model needs to predict their ratio. seen: speed before and
    after.

    supposes: what its author does not say and is supposed here; empty where nothing is. elsewhere_ms: what a GPU beside
    takes of each step.
    """

    source: str
    engine: str
    machine: str
    model: str
    phase: str
    tokens: int
    elsewhere_ms: float
    before: Side
    after: Side
    seen: tuple[float, float]
    supposes: str

    @property
    def observed(self) -> float:
        """How many times faster the second side was."""
        return self.seen[1] / self.seen[0]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A published row that does not give enough: which, and what it lacks."""

    source: str
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Published:
    """The whole record."""

    constants: Constants
    machines: Mapping[str, Mapping[str, Any]]
    models: Mapping[str, Mapping[str, Any]]
    engines: Mapping[str, Mapping[str, Any]]
    rows: tuple[Row, ...]
    left_out: tuple[LeftOut, ...]

    @classmethod
    def load(cls, path: Path = RECORD) -> Published:
        """Read the record."""
        raw = json.loads(path.read_text(encoding="utf-8"))
        rows = tuple(_row(entry) for entry in raw["rows"])
        left = tuple(LeftOut(**entry) for entry in raw.get("left_out", ()))
        return cls(Constants(**raw["constants"]), raw["machines"], raw["models"], raw["engines"], rows, left)

    def predicted(self, row: Row) -> float:
        """The ratio that the cost model predicts."""
        return self._seconds(row, row.before) / self._seconds(row, row.after)

    def with_constants(self, constants: Constants) -> Published:
        """The same rows under other constants."""
        return replace(self, constants=constants)

    def _seconds(self, row: Row, side: Side) -> float:
        engine, spec = self.engines[row.engine], self.machines[row.machine]
        work = _work(self.models[row.model], int(engine["barriers_per_layer"]))
        c = self.constants
        shares = (engine["reads"], c.links, engine["multiplies"], engine["alone"])
        kind = EngineKind(row.engine, *shares, c.straggling, c.handover_us * engine["handovers"])
        machine = _machine(spec, side, c)
        step = step_time(machine, _spread(machine, side), load_of(work, row.tokens, 1, 0), kind).total
        calls = work.layers * side.calls_per_layer * side.call_us / 1e6
        return step + calls + row.elsewhere_ms / 1e3


def direction(ratio: float) -> int:
    """1: faster, -1: slower, 0: no change."""
    return 0 if 1 / NO_CHANGE < ratio < NO_CHANGE else 1 if ratio > 1 else -1


def error_of_ratio(row: Row, predicted: float) -> float:
    """By how much the ratio is wrong."""
    return abs(predicted / row.observed - 1)


def error_of_gain(row: Row, predicted: float) -> float:
    """By how much the gain (the logarithm of the ratio) is wrong, as a share of it. Only for rows in which something
    changed."""
    return abs(math.log(predicted / row.observed) / math.log(row.observed))


def always(ratio: float) -> Model:
    """A model that knows nothing, to compare with."""
    return lambda row: ratio


@dataclass(frozen=True, slots=True)
class Score:
    """wrong: rows whose direction is not reproduced. ratio, gain: median errors."""

    wrong: tuple[Row, ...]
    ratio: float
    gain: float

    @property
    def passes(self) -> bool:
        """Every direction right, and both median errors at most 30 %."""
        return not self.wrong and self.ratio <= 0.30 and self.gain <= 0.30


def score(rows: Sequence[Row], model: Model) -> Score:
    """How well a model of ratios does on these rows."""
    made = [(row, model(row)) for row in rows]
    wrong = tuple(row for row, ratio in made if direction(ratio) != direction(row.observed))
    gains = [error_of_gain(row, ratio) for row, ratio in made if direction(row.observed)]
    return Score(wrong, median(error_of_ratio(row, ratio) for row, ratio in made), median(gains))


def _row(entry: Mapping[str, Any]) -> Row:
    before, after = Side(**entry["before"]), Side(**entry["after"])
    names = {key: entry[key] for key in ("source", "engine", "machine", "model", "phase")}
    seen = (float(entry["seen"][0]), float(entry["seen"][1]))
    more = {
        "tokens": entry.get("tokens", 1),
        "elsewhere_ms": entry.get("elsewhere_ms", 0.0),
        "supposes": entry.get("supposes", ""),
    }
    return Row(**names, **more, before=before, after=after, seen=seen)


def _work(model: Mapping[str, Any], barriers: int) -> ModelWork:
    dense, experts, share = model["dense_gb"], model.get("expert_gb", 0.0), model.get("expert_share", 1.0)
    exchanged = _FLOAT_BYTES * (3 * model["hidden"] + model["inner"])
    total, active = int((dense + experts) * 1e9), int((dense + experts * share) * 1e9)
    return ModelWork(total, 2e9 * model["parameters_b"], 0, model["layers"], exchanged, barriers, active, share)


def _machine(spec: Mapping[str, Any], side: Side, constants: Constants) -> MachineSpeed:
    """The nodes with the threads of one side. More threads than cores multiply no faster, and fill every hardware
    thread."""
    count = 1 if side.placement == "local" else min(spec["nodes"], max(2, round(side.threads / spec["cores"])))
    threads = side.threads // count
    cores = min(threads, spec["cores"])
    gops = cores * spec["ghz"] * spec["ops_per_cycle"]
    nodes = tuple(NodeSpeed(node, threads, spec["gb_s"], gops) for node in range(count))
    links = {(a, b): spec["link_gb_s"] for a in range(count) for b in range(count) if a != b}
    full = constants.slice_us if threads > spec["cores"] else 0.0
    within = threads * constants.transfer_ns / 1e3 + full
    across = count * threads * constants.transfer_across_ns / 1e3 + full
    return MachineSpeed(nodes, links, within, within if side.calls_per_layer else across)


def _spread(machine: MachineSpeed, side: Side) -> Spread:
    if side.placement == "one":
        return on_one(machine.nodes, machine.nodes[0].node)
    return at_home(machine.nodes) if side.placement in ("local", "home") else round_robin(machine.nodes)
