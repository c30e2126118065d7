"""The speed that each policy of `--numa` would reach on a machine, and which one is chosen. Pure.

`predict` is for one policy, `choose_policy` compares them all. The physics is in step_cost, the figures of the machine
in machine_speed, and docs/numa.md shows how the predictions compare with what others have published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from homenode.host.plan.numa.machine_speed import MachineSpeed, NodeSpeed, machine_speed
from homenode.host.plan.numa.step_cost import (
    OWN,
    EngineKind,
    Spread,
    StepTime,
    StepWork,
    at_home,
    round_robin,
    step_time,
)
from homenode.numa_policy import PLANNED_POLICIES, WHOLE_POLICIES, NumaPolicy
from homenode.units import format_bytes, format_count

__all__ = [
    "MachineSpeed", "ModelWork", "NodeSpeed", "PolicyChoice", "Prediction", "choose_policy", "load_of",
    "machine_speed", "predict",
]  # fmt: skip

PROMPT_CHUNK = 512  # tokens of a prompt computed at once
_WORTH_MORE_NODES = 1.05  # what several nodes must gain over one: below it, the prediction is not that good
_WORTH_A_COPY = 1.10  # what further copies of the weights must gain over one copy


@dataclass(frozen=True, slots=True)
class ModelWork:
    """A model as work. weight_bytes: of all weights as they are kept. flops_per_token: operations of a token, a
    multiply-add being two.

    activation_bytes: of one token and layer that the threads of every node need. active_bytes: of the weights that one
    token reads; None: all of them. expert_share: experts a token chooses, of all there are; None: the active share of
    the bytes. chosen: of a longer context, tokens of which a step reads all it keeps, where an indexer chooses them; of
    the others it reads scanned_bytes each. None: it reads all of all.
    """

    weight_bytes: int
    flops_per_token: float
    kv_bytes_per_token: int
    layers: int
    activation_bytes: int
    barriers_per_layer: int = 5
    active_bytes: int | None = None
    expert_share: float | None = None
    chosen: int | None = None
    scanned_bytes: int = 0

    def context_bytes(self, context: int) -> int:
        """Bytes that a step reads of what KV memory keeps of a sequence of so many tokens."""
        chosen = context if self.chosen is None else min(context, self.chosen)
        return self.kv_bytes_per_token * chosen + self.scanned_bytes * (context - chosen)

    def read_bytes(self, tokens: int) -> float:
        """Bytes of weights that some token of `tokens` reads, where experts are chosen by lot."""
        if self.active_bytes is None or self.active_bytes >= self.weight_bytes:
            return float(self.weight_bytes)
        chosen = self.active_bytes / self.weight_bytes if self.expert_share is None else self.expert_share
        return self.weight_bytes - (self.weight_bytes - self.active_bytes) * (1.0 - chosen) ** (tokens - 1)


@dataclass(frozen=True, slots=True)
class Prediction:
    """One policy: tokens a second of all sequences, bytes of all nodes together, and whether it fits. parts: seconds of
    a decode step (StepTime)."""

    policy: NumaPolicy
    decode_tok_s: float
    prefill_tok_s: float
    memory_bytes: int
    fits: bool
    parts: Mapping[str, float] = field(default_factory=dict)
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """The policy, one sentence that says why, and all that were compared, the fastest first. nodes: those whose threads
    compute."""

    policy: NumaPolicy
    why: str
    predictions: tuple[Prediction, ...]
    nodes: tuple[int, ...] = ()


def predict(
    machine: MachineSpeed, work: ModelWork, policy: NumaPolicy, batch: int, context: int, engine: EngineKind = OWN
) -> Prediction:
    """Return what `policy` reaches with `batch` sequences of `context` tokens each. ValueError for a policy that is not
    one of PLANNED_POLICIES.
    """
    if policy not in PLANNED_POLICIES:
        raise ValueError(f"policy {policy!r}; wanted one of {', '.join(PLANNED_POLICIES)}")
    copies = len(machine.nodes) if policy in WHOLE_POLICIES else 1
    memory = work.weight_bytes * copies + work.kv_bytes_per_token * batch * context
    if policy == NumaPolicy.REPLICATE:
        return _replicated(machine, work, batch, context, memory, engine)
    nodes = (_best_node(machine),) if policy == NumaPolicy.LOCAL else machine.nodes
    spread = round_robin(nodes) if policy == NumaPolicy.INTERLEAVE else at_home(nodes)
    step, prefill = _step_and_prompt(machine, spread, work, batch, context, engine)
    names = tuple(node.node for node in nodes)
    return Prediction(policy, batch / step.total, PROMPT_CHUNK / prefill.total, memory, True, asdict(step), names)


def choose_policy(
    machine: MachineSpeed,
    work: ModelWork,
    free: Mapping[int, int | None],
    batch: int,
    context: int,
    engine: EngineKind = OWN,
) -> PolicyChoice:
    """The policy to take. free: bytes free on each memory node, None or no entry: not known.

    The fastest that fits, decoding with `batch` sequences; but several nodes only where they gain 5 % over one, and
    further copies only where they gain 10 % over one copy. Where nothing fits, what wants the least memory, with `fits`
    False everywhere.
    """
    if len(machine.nodes) == 1:
        only = _checked(
            machine, work, predict(machine, work, NumaPolicy.LOCAL, batch, context, engine), free, batch, context
        )
        return PolicyChoice(
            NumaPolicy.LOCAL,
            "the machine has one node for this engine: there is nothing to spread over",
            (only,),
            only.nodes,
        )
    made = [
        _checked(machine, work, predict(machine, work, policy, batch, context, engine), free, batch, context)
        for policy in PLANNED_POLICIES
    ]
    ranked = tuple(sorted(made, key=lambda p: -p.decode_tok_s))
    fitting = [p for p in ranked if p.fits]
    best = _preferred(fitting) if fitting else min(ranked, key=lambda p: (p.memory_bytes, -p.decode_tok_s))
    return PolicyChoice(best.policy, _why(machine, best, ranked, batch, context), ranked, best.nodes)


def load_of(work: ModelWork, tokens: int, sequences: int, context: int) -> StepWork:
    """One step of `tokens` tokens of `sequences` sequences that have `context` tokens each."""
    read = work.read_bytes(tokens) + work.context_bytes(context) * sequences
    exchanged = float(work.activation_bytes * work.layers * tokens)
    return StepWork(
        read, work.flops_per_token * tokens, tokens, work.layers, exchanged, work.layers * work.barriers_per_layer
    )


def _step_and_prompt(
    machine: MachineSpeed, spread: Spread, work: ModelWork, batch: int, context: int, engine: EngineKind
) -> tuple[StepTime, StepTime]:
    decode = step_time(machine, spread, load_of(work, batch, batch, context), engine)
    return decode, step_time(machine, spread, load_of(work, PROMPT_CHUNK, 1, 0), engine)


def _replicated(
    machine: MachineSpeed, work: ModelWork, batch: int, context: int, memory: int, engine: EngineKind
) -> Prediction:
    """Engines that know nothing of each other; the sequences go round, the fastest node first."""
    order = sorted(machine.nodes, key=lambda node: -_alone(machine, node, work, batch, context, engine)[0].decode_tok_s)
    decode = prefill = 0.0
    parts: Mapping[str, float] = {}
    for at, node in enumerate(order):
        sequences = (batch - at + len(order) - 1) // len(order)
        if sequences <= 0:
            break
        one, step = _alone(machine, node, work, sequences, context, engine)
        decode, prefill = decode + one.decode_tok_s, prefill + one.prefill_tok_s
        parts = parts or asdict(step)
    return Prediction(
        NumaPolicy.REPLICATE, decode, prefill, memory, True, parts, tuple(node.node for node in machine.nodes)
    )


def _alone(
    machine: MachineSpeed, node: NodeSpeed, work: ModelWork, batch: int, context: int, engine: EngineKind
) -> tuple[Prediction, StepTime]:
    step, prefill = _step_and_prompt(machine, at_home((node,)), work, batch, context, engine)
    return Prediction(NumaPolicy.LOCAL, batch / step.total, PROMPT_CHUNK / prefill.total, work.weight_bytes, True), step


def _best_node(machine: MachineSpeed) -> NodeSpeed:
    """The node that `local` means: most threads, then the fastest memory, then the lowest number."""
    return max(machine.nodes, key=lambda node: (node.threads, node.read_gb_s, -node.node))


def _checked(
    machine: MachineSpeed, work: ModelWork, made: Prediction, free: Mapping[int, int | None], batch: int, context: int
) -> Prediction:
    wanted = _bytes_by_node(machine, work, made, batch, context)
    fits = all((available := free.get(node)) is None or size <= available for node, size in wanted.items())
    return replace(made, fits=fits)


def _bytes_by_node(
    machine: MachineSpeed, work: ModelWork, made: Prediction, batch: int, context: int
) -> dict[int, float]:
    """Bytes by memory node."""
    teams = [node for node in machine.nodes if node.node in made.nodes]
    threads = sum(node.threads for node in teams)
    memories = {node.memory for node in teams}
    keys = work.kv_bytes_per_token * batch * context
    found: dict[int, float] = dict.fromkeys(memories, 0.0)
    if made.policy == NumaPolicy.INTERLEAVE:
        return dict.fromkeys(memories, (work.weight_bytes + keys) / len(memories))
    for node in teams:
        share = node.threads / threads
        found[node.memory] += (
            0
            if made.policy == NumaPolicy.MIRROR
            else work.weight_bytes
            if made.policy == NumaPolicy.REPLICATE
            else work.weight_bytes * share
        )
        found[node.memory] += keys * share
    return (
        {node: size + work.weight_bytes for node, size in found.items()} if made.policy == NumaPolicy.MIRROR else found
    )


def _preferred(fitting: Sequence[Prediction]) -> Prediction:
    """The fastest, unless it takes more copies or more nodes for too little."""
    best = fitting[0]
    if best.policy in WHOLE_POLICIES:
        single = next((p for p in fitting if p.policy not in WHOLE_POLICIES), None)
        if single is not None and best.decode_tok_s < single.decode_tok_s * _WORTH_A_COPY:
            best = single
    local = next((p for p in fitting if p.policy == NumaPolicy.LOCAL), None)
    if local is not None and best.decode_tok_s < local.decode_tok_s * _WORTH_MORE_NODES:
        return local
    return best


def _why(machine: MachineSpeed, best: Prediction, ranked: Sequence[Prediction], batch: int, context: int) -> str:
    """One sentence with the figures."""
    others = ", ".join(
        f"{p.policy} {p.decode_tok_s:.3g}" + ("" if p.fits else " (does not fit)") for p in ranked if p is not best
    )
    sequences = format_count(batch, "sequence")
    lead = (
        f"{best.policy} is predicted to decode {best.decode_tok_s:.3g} tokens/s with {sequences} of "
        f"{format_count(context, 'token')}"
    )
    size = f"in {format_bytes(best.memory_bytes)}" + ("" if best.fits else ", which does not fit, but nothing does")
    return f"{lead}, {size}; {others} (speeds of the nodes: {machine.origin or 'as given'})"
