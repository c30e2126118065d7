"""The work of a step of a model, to read and to multiply, from its layout and figures alone. Pure.

Counted are the matrices (as kept in memory, each read once a step; of experts as many as the step's tokens choose
together on average when each chooses by lot, which for one token is just its own), the keys and values of the context,
the states of layers that keep one, and the products with all; of latent attention those that the model defines; where
an indexer chooses tokens, the chosen ones, and its keys and products for tokens that have more to choose from. Left
out is what is small beside them: norms, rotations, activations, biases, attention sinks. So a step can come near the
ceiling made of this but not above it, unless the tokens of a batch agree on experts more than chance would have it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from homenode.bench.machine.ceilings import Operations, Work, path_of
from homenode.compute.ops import KvGeometry
from homenode.model.formats.limits import EMBEDDING
from homenode.model.spec import ModelSpec
from homenode.model.state import matrix_operations, state_geometry_of
from homenode.model.weights.layout import WeightLayout
from homenode.model.weights.sampled_rows import of_sampled_rows, output_matrix

_OF_EXPERT = re.compile(r"\.experts\.[0-9]+\.")

# The phase of a native program in which a matrix is multiplied, by the end of its name.
_PHASES = {
    "q_proj": "qkv",
    "k_proj": "qkv",
    "v_proj": "qkv",
    "o_proj": "o",
    "gate_proj": "gate_up",
    "up_proj": "gate_up",
    "down_proj": "down",
}
_NOTHING = Work(0.0, Operations())


@dataclass(frozen=True)
class WorkCounter:
    """Counts the work of steps of one model."""

    layout: WeightLayout
    spec: ModelSpec
    geometry: KvGeometry

    def prefill(self, tokens: int) -> Work:
        """One step of `tokens` tokens of one sequence from position 0, of which the last is sampled."""
        return sum(self.prefill_phases(tokens).values(), _NOTHING)

    def prefill_phases(self, tokens: int) -> dict[str, Work]:
        """The same by phase of the program: qkv, attention, o, gate_up, down, lm_head, ...; choose where an indexer
        chooses tokens."""
        last = self.spec.num_layers - 1  # whose attention is computed for the sampled token alone

        def computed(layer: int) -> tuple[int, int]:
            return (tokens - 1, 1) if layer == last else (0, tokens)

        attention = self._attention(lambda layer: self._visible_pairs(*computed(layer), layer))
        attention |= self._choice(lambda layer: self._scored_pairs(*computed(layer)))
        # Its keys and values are made in the step and need not come from memory.
        made = {name: Work(0.0, work.operations) for name, work in attention.items()}
        return self._matrices(tokens, sampled=1) | self._states(tokens, 1) | made

    def decode(self, batch: int, context: int) -> Work:
        """One step of one token for each of `batch` sequences, of `context` tokens before it, all of them sampled."""
        return sum(self.decode_phases(batch, context).values(), _NOTHING)

    def decode_phases(self, batch: int, context: int) -> dict[str, Work]:
        """The same by phase of the program."""
        attention = self._attention(lambda layer: batch * self._visible_pairs(context, 1, layer))
        attention |= self._choice(lambda _: batch * self._scored_pairs(context, 1))
        return self._matrices(batch, sampled=batch) | self._states(batch, batch) | attention

    def decoding(self, batch: int, context: int, steps: int) -> Work:
        """`steps` such steps in a row, the context growing."""
        total = Work(0.0, Operations())
        for step in range(steps):
            total += self.decode(batch, context + step)
        return total

    def _matrices(self, tokens: int, sampled: int) -> dict[str, Work]:
        """Every matrix once for `tokens` rows, those behind the last attention for `sampled`; of an embedding table
        only the rows looked up."""
        head = output_matrix(self.spec)
        phases: dict[str, Work] = {}
        for matrix in self.layout.matrices:
            if matrix.name == EMBEDDING:
                phases["embedding"] = Work(tokens * matrix.target_bytes / matrix.rows, Operations())
            if matrix.name == head or matrix.name != EMBEDDING:
                phase = "lm_head" if matrix.name == head else _phase_of(matrix.name)
                rows = sampled if of_sampled_rows(matrix.name, self.spec) else tokens
                read, used = self._shares(matrix.name, rows)
                products = 2.0 * rows * used * matrix.rows * matrix.columns
                work = Work(read * matrix.target_bytes, Operations.of(path_of(matrix.target), products))
                phases[phase] = phases.get(phase, _NOTHING) + work
        return phases

    def _shares(self, name: str, tokens: int) -> tuple[float, float]:
        """Return how likely a step of `tokens` tokens needs this matrix, and the share of the tokens that multiply with
        it.
        """
        moe = self.spec.moe
        if moe is None or not _OF_EXPERT.search(name):
            return 1.0, 1.0
        chosen = moe.experts_per_token / moe.num_experts
        return 1.0 - (1.0 - chosen) ** tokens, chosen

    def _states(self, tokens: int, sequences: int) -> dict[str, Work]:
        """Return what layers that keep a state read and write of it, each sequence's once, and multiply."""
        kept = state_geometry_of(self.spec)
        if kept is None:
            return {}
        elements = sum(layer.heads * layer.key_width * layer.value_width for layer in kept.layers)
        weights = sum(layer.channels * (layer.taps + 1) for layer in kept.layers)
        tails = sum(layer.channels * layer.taps for layer in kept.layers)
        rule = "delta rule" if self.spec.delta is not None else "selective scan"
        operations = matrix_operations(self.spec) * tokens * elements
        matrices = Work(8.0 * sequences * elements, Operations.of("f32", operations))
        return ({rule: matrices} if elements else {}) | {
            "convolution": Work(8.0 * sequences * tails, Operations.of("f32", 2.0 * tokens * weights))
        }

    def _visible_pairs(self, start: int, count: int, layer: int) -> int:
        """(token, key it sees) pairs of tokens start .. start + count - 1 in a layer."""
        window, positions = self.spec.window_of(layer) or start + count, range(start, start + count)
        indexer = self.spec.indexer
        if indexer is not None and self.spec.chooses(layer):
            window = min(window, indexer.chosen)
        if self.spec.window_kind == "chunked":
            return sum(position % window + 1 for position in positions)
        return sum(min(position + 1, window) for position in positions)

    def _scored_pairs(self, start: int, count: int) -> int:
        """(token, key that an indexer scores for it) pairs of such tokens: whose context is short has no choice."""
        indexer = self.spec.indexer
        first = start + count if indexer is None else max(start, indexer.chosen)
        return sum(position + 1 for position in range(first, start + count))

    def _choice(self, pairs: Callable[[int], int]) -> dict[str, Work]:
        """Return what indexers read, the key of each pair's token, and multiply: a product with it for each of their
        heads. `pairs`: of a layer, which may choose for layers behind it.
        """
        indexer, dtype = self.spec.indexer, self.geometry.dtype
        if indexer is None:
            return {}
        scored = {layer: pairs(layer) / self.spec.window_tokens(layer) for layer in indexer.layers}
        products = 2.0 * indexer.heads * indexer.width * sum(scored.values())
        read = sum(pairs(layer) * self.spec.index_kv(layer).token_bytes(dtype) for layer in scored)
        return {"choose": Work(float(read), Operations.of(path_of(dtype.upper()), products))}

    def _attention(self, pairs: Callable[[int], int]) -> dict[str, Work]:
        """Return what all layers that attend read, the keys and values of each pair's token, and multiply: for each
        pair and query head a product with the key and one with the value. `pairs`: of a layer.
        """
        total, dtype = _NOTHING, self.geometry.dtype
        for layer in range(self.spec.num_layers):
            if (kv := self.spec.kv_of(layer)) is not None:
                products = 2.0 * self.spec.num_heads * self.spec.attended_columns(layer) * pairs(layer)
                operations = Operations.of(path_of(dtype.upper()), products)
                total += Work(float(pairs(layer) * kv.token_bytes(dtype)), operations)
        return {"attention": total}


def _phase_of(name: str) -> str:
    """The phase that multiplies with a matrix of the layers."""
    if re.search(r"\.(mlp|block_sparse_moe)\.(gate|router)\.weight$", name):
        return "router"
    role = name.removesuffix(".weight").rpartition(".")[2]
    if _OF_EXPERT.search(name):
        return "experts_down" if role in ("down_proj", "w2") else "experts_gate_up"
    return _PHASES.get(role, "linear")
