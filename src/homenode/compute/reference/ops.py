"""The ops, evaluated at once with NumPy.

Each row of a product is its own matrix-vector product, and each query its own attention, so that shapes (and with them
the order of every summation) never depend on what shares the batch: slow, and batch-invariant by construction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from homenode.compute.activations import sigmoid, silu
from homenode.compute.expert_usage import ExpertUsage
from homenode.compute.ops import (
    ALL_KEYS,
    AttendedKeys,
    DeltaHeads,
    Experts,
    FloatArray,
    IntArray,
    Precision,
    RelativeBias,
    Routing,
    ScanHeads,
    ScoreRule,
    StepArrays,
    WindowKind,
)
from homenode.compute.ranks import RankGroup
from homenode.compute.reference import state
from homenode.compute.reference.kv import ReferenceKvCache
from homenode.compute.reference.moe import choose_experts, expert_output
from homenode.compute.reference.state import ReferenceStateMemory
from homenode.compute.row_ops import RowOps


class EagerOps(RowOps):
    """`Ops` over NumPy arrays for the step described by `arrays`. Weights and vectors are float32 arrays."""

    def __init__(self, arrays: StepArrays, group: RankGroup | None = None, usage: ExpertUsage | None = None) -> None:
        """`usage`: where the experts computed are counted, if anywhere."""
        self._step = arrays
        self._group = group
        self._usage = usage
        self._moe_layers = 0  # seen so far

    def embedding(self, table: FloatArray, first: int = 0, vocabulary: int | None = None) -> FloatArray:
        """See `Ops.embedding`. ValueError for an id outside the vocabulary."""
        ids, size = self._step.ids, len(table) if vocabulary is None else vocabulary
        if len(ids) and not 0 <= ids.min() <= ids.max() < size:
            raise ValueError(f"token ids from {ids.min()} to {ids.max()} are outside a vocabulary of {size}")
        rows = np.zeros((len(ids), table.shape[1]), np.float32)
        here = (ids >= first) & (ids < first + len(table))
        rows[here] = table[ids[here] - first]
        return rows

    def place_rows(self, x: FloatArray, first: int = 0, of_columns: int = 0, adds: bool = False) -> FloatArray:
        """See `Ops.place_rows`. ValueError for rows of another width, or places that are no tokens of the step."""
        places, rows = self._step.row_places, self._step.input_rows
        if places is None or rows is None:
            return x
        width, past = of_columns or x.shape[1], first + x.shape[1]
        if (
            rows.shape != (len(places), width)
            or past > width
            or (np.diff(places, prepend=-1) < 1).any()
            or places[-1] >= len(x)
        ):
            raise ValueError(f"rows {list(rows.shape)} at {places.tolist()} of a step with rows {list(x.shape)}")
        placed = x.copy()
        placed[places] = placed[places] + rows[:, first:past] if adds else rows[:, first:past]
        return placed

    def position_rows(self, table: FloatArray, first: int = 0) -> FloatArray:
        """See `Ops.position_rows`. ValueError for a position that the table has no row of."""
        positions = self._step.positions
        if len(positions) and positions.max() + first >= len(table):
            raise ValueError(f"position {positions.max()} has no row in a table of {len(table)} rows from {first} on")
        return table[positions + first]

    def type_rows(self, table: FloatArray) -> FloatArray:
        """See `Ops.type_rows`. ValueError for a type that the table has no row of."""
        types = self._step.token_types
        if types is None:
            types = np.zeros(len(self._step.ids), np.int32)
        if len(types) and not 0 <= types.min() <= types.max() < len(table):
            raise ValueError(f"token types from {types.min()} to {types.max()} have no rows in a table of {len(table)}")
        return table[types]

    def stored_rows(self, table: Any, otherwise: int | None = None) -> FloatArray:
        """See `Ops.stored_rows`. ValueError for an id past the table where there are none."""
        ids = self._step.ids
        ids = ids if otherwise is None else np.where(ids < table.rows, ids, otherwise)
        if len(ids) and not 0 <= ids.min() <= ids.max() < table.rows:
            raise ValueError(f"token ids from {ids.min()} to {ids.max()} are outside a table of {table.rows} rows")
        rows = [table.read(int(i)) for i in ids]
        return np.stack(rows) if rows else np.zeros((0, table.columns), np.float32)

    def received(self, columns: int) -> FloatArray:
        """See `Ops.received`. ValueError when the step has no such rows."""
        hidden = self._step.hidden
        if hidden is None or hidden.shape != (len(self._step.ids), columns):
            seen = "none" if hidden is None else f"{list(hidden.shape)}"
            raise ValueError(
                f"rows [{len(self._step.ids)}, {columns}] of the stage before are wanted; the step has {seen}"
            )
        return hidden

    def sum(self, x: FloatArray) -> FloatArray:
        """See `Ops.sum`."""
        if self._group is None:
            return x
        total = np.array(x, np.float32, order="C")
        self._group.sum(total)
        return total

    def gather(self, x: FloatArray, widths: Sequence[int]) -> FloatArray:
        """See `Ops.gather`."""
        return x if self._group is None else self._group.gather(np.ascontiguousarray(x), widths)

    def rms_norm(self, x: FloatArray, weight: FloatArray | int, eps: float) -> FloatArray:
        """See `Ops.rms_norm`."""
        columns, factor = (weight, np.float32(1)) if isinstance(weight, int) else (len(weight), weight)
        groups = np.ascontiguousarray(x).reshape(-1, columns)
        mean = np.mean(np.square(groups), axis=1, keepdims=True, dtype=np.float32)
        return np.asarray(groups / np.sqrt(mean + np.float32(eps)) * factor, np.float32).reshape(x.shape)

    def linear(
        self,
        x: FloatArray,
        weights: Sequence[FloatArray],
        biases: Sequence[FloatArray | None] = (),
        residual: FloatArray | None = None,
        precision: Precision = "usual",
    ) -> FloatArray:
        """See `Ops.linear`. Nothing is rounded."""
        rows = np.ascontiguousarray(x)
        parts = []
        for i, weight in enumerate(weights):
            part = np.empty((len(rows), len(weight)), np.float32)
            for row, out in zip(rows, part, strict=True):
                np.matmul(weight, row, out=out)
            bias = biases[i] if biases else None
            parts.append(part if bias is None else part + bias)
        product = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        return product if residual is None else product + residual

    def linear_heads(self, x: FloatArray, weights: Sequence[FloatArray]) -> FloatArray:
        """See `Ops.linear_heads`."""
        heads = np.split(x, len(weights), axis=1)
        return np.concatenate([self.linear(head, (w,)) for head, w in zip(heads, weights, strict=True)], axis=1)

    def adapter_index(self) -> FloatArray:
        """See `Ops.adapter_index`."""
        step = self._step
        given = np.full(len(step.context_len), -1, np.int32) if step.adapters is None else step.adapters
        return np.repeat(given, np.diff(step.query_start)).astype(np.float32)[:, None]

    def linear_indexed(
        self,
        x: FloatArray,
        weights: Sequence[FloatArray | None],
        index: FloatArray,
        residual: FloatArray | None = None,
        first: int = 0,
    ) -> FloatArray:
        """See `Ops.linear_indexed`."""
        named = index[:, 0] if len(index) == len(x) else index[self._step.sample_rows, 0]
        columns = next(len(weight) for weight in weights if weight is not None)
        product = np.zeros((len(x), columns), np.float32)
        for row, number, out in zip(np.ascontiguousarray(x), named, product, strict=True):
            weight = weights[int(number)] if 0 <= number < len(weights) else None
            if weight is not None:
                np.matmul(weight, row, out=out)
        if residual is None:
            return product
        total = np.array(residual)
        total[:, first : first + columns] += product
        return total

    def rope_angles(
        self, inverse_frequencies: FloatArray, scale: float, behind: int = 0, axes: Sequence[int] = ()
    ) -> FloatArray:
        """See `Ops.rope_angles`. The left half of the columns is cos, the right half sin."""
        turned = self._step.rope_positions
        positions = self._step.positions[:, None] if turned is None or not axes else turned[list(axes)].T
        angles = (positions - behind).astype(np.float32) * inverse_frequencies.astype(np.float32)
        return np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * np.float32(scale)

    def rope(self, x: FloatArray, angles: FloatArray, head_dim: int, adjacent: bool = False) -> FloatArray:
        """See `Ops.rope`."""
        half = angles.shape[1] // 2
        cos, sin = angles[:, None, :half], angles[:, None, half:]
        heads = np.array(x).reshape(len(x), -1, head_dim)
        if adjacent:
            left, right = heads[..., : 2 * half : 2].copy(), heads[..., 1 : 2 * half : 2].copy()
        else:
            left, right = heads[..., :half].copy(), heads[..., half : 2 * half].copy()
        heads[..., :half] = left * cos - right * sin
        heads[..., half : 2 * half] = right * cos + left * sin
        return heads.reshape(x.shape)

    def attention(
        self,
        q: FloatArray,
        k: FloatArray | None,
        v: FloatArray | None,
        cache: ReferenceKvCache,
        layer: int,
        rule: ScoreRule,
        attended: AttendedKeys = ALL_KEYS,
    ) -> FloatArray:
        """See `Ops.attention`. ValueError for other value columns than the layer has."""
        step = self._step
        shape, value_columns, pooled = cache.geometry.layers[layer], attended.value_columns, attended.pooled
        if value_columns != shape.value_columns:
            raise ValueError(f"attention: values of {value_columns} columns of keys; layer {layer} has {shape}")
        heads = q.shape[1] // shape.key_width
        plain = replace(rule, sinks=None)
        chosen: Any = attended.chosen
        out = np.empty((len(q), heads * shape.value_size), np.float32)
        for i, context in enumerate(step.context_len):
            tokens = slice(step.query_start[i], step.query_start[i + 1])
            positions, block_row = step.positions[tokens], step.block_table[i]
            cache.check(block_row, int(context))
            if k is not None:
                cache.store(layer, block_row, positions, k[tokens], None if v is None else v[tokens])
            keys, values = cache.gather(layer, block_row, int(context))
            if pooled is not None:
                cache.store_windows(pooled.layer, block_row, positions, pooled.rows[tokens], pooled.ratio)
                count = int(context) // pooled.ratio
                more = cache.gather_windows(pooled.layer, block_row, pooled.ratio, pooled.rows.shape[1], count)
            for row, position in zip(range(tokens.start, tokens.stop), positions, strict=True):
                first = first_visible(int(position), rule.window, rule.window_kind)
                past = int(position) + 1
                if rule.mask == "all":
                    past = int(context) if rule.window is None else min(int(context), int(position) + rule.window)
                if rule.mask == "spans" and step.seen_spans is not None and step.seen_spans[row, 1]:
                    first, past = min(first, int(step.seen_spans[row, 0])), max(past, int(step.seen_spans[row, 1]))
                visible: Any = slice(first, past)
                apart = np.arange(first, past) - int(position)
                added = None if rule.slopes is None else rule.slopes[:, None] * -np.abs(apart).astype(np.float32)
                if rule.bias is not None:
                    added = _bias_of(rule.bias, heads, apart)
                query = q[row].reshape(shape.kv_heads, -1, shape.key_width)
                if pooled is not None:
                    windows: Any = slice(past // pooled.ratio)
                    if pooled.chosen is not None:
                        windows = pooled.chosen[row][pooled.chosen[row] >= 0] // pooled.ratio
                    seen = np.concatenate([keys[:, visible], more[None, windows]], axis=1)
                    found = _attention_of_row(query, seen, seen[..., :value_columns], rule, added)
                    out[row] = found.reshape(-1)
                    continue
                if chosen is None:
                    found = _attention_of_row(query, keys[:, visible], values[:, visible], rule, added)
                    out[row] = found.reshape(-1)
                    continue
                for head, blocks in enumerate(chosen[row].reshape(shape.kv_heads, -1)):
                    one = slice(head, head + 1)
                    spread = blocks[blocks >= 0, None] * attended.chosen_block + np.arange(attended.chosen_block)
                    visible = spread[spread <= position]
                    found = _attention_of_row(query[one], keys[one, visible], values[one, visible], plain, None)
                    out[row].reshape(shape.kv_heads, -1)[head] = found.reshape(-1)
        return out

    def _indexed_keys(
        self, k: FloatArray, cache: ReferenceKvCache, layer: int, ratio: int = 1
    ) -> Iterator[tuple[int, FloatArray]]:
        """Store the keys of an indexer. Yields each row of the step with the keys up to its own, [positions or windows
        of `ratio` tokens, width].
        """
        step = self._step
        for i, context in enumerate(step.context_len):
            tokens = slice(step.query_start[i], step.query_start[i + 1])
            positions, block_row = step.positions[tokens], step.block_table[i]
            cache.check(block_row, int(context))
            if ratio > 1:
                cache.store_windows(layer, block_row, positions, k[tokens], ratio)
                keys = cache.gather_windows(layer, block_row, ratio, k.shape[1], int(context) // ratio)
            else:
                cache.store(layer, block_row, positions, k[tokens], None)
                keys = cache.gather(layer, block_row, int(context))[0][0]
            for row, position in zip(range(tokens.start, tokens.stop), positions, strict=True):
                yield row, keys[: (position + 1) // ratio]

    def choose_tokens(
        self,
        q: FloatArray,
        weights: FloatArray,
        k: FloatArray,
        cache: ReferenceKvCache,
        layer: int,
        count: int,
        ratio: int = 1,
    ) -> IntArray:
        """See `Ops.choose_tokens`: [tokens, count], ascending, -1 behind the last."""
        found = np.full((len(q), count), -1, np.int32)
        for row, keys in self._indexed_keys(k, cache, layer, ratio):
            products = q[row].reshape(-1, keys.shape[1]) @ keys.T
            scores = weights[row] @ np.maximum(products, np.float32(0))
            best = np.sort(np.argsort(-scores, kind="stable")[:count]) * ratio + ratio - 1
            found[row, : len(best)] = best
        return found

    def choose_blocks(
        self, q: FloatArray, k: FloatArray, cache: ReferenceKvCache, layer: int, block: int, count: int, local: int
    ) -> IntArray:
        """See `Ops.choose_blocks`: [tokens, heads * count], those of a head ascending, -1 behind the last."""
        heads = q.shape[1] // k.shape[1]
        found = np.full((len(q), heads, count), -1, np.int32)
        for row, keys in self._indexed_keys(k, cache, layer):
            products = q[row].reshape(heads, -1) @ keys.T
            scores = np.maximum.reduceat(products, np.arange(0, len(keys), block), axis=1)
            scores[:, -local:] = np.inf
            best = np.sort(np.argsort(-scores, axis=1, kind="stable")[:, :count], axis=1)
            found[row, :, : best.shape[1]] = best
        return found.reshape(len(q), -1)

    def layer_norm(
        self, x: FloatArray, weight: FloatArray | int, bias: FloatArray | None, eps: float, group: int | None = None
    ) -> FloatArray:
        """See `Ops.layer_norm`."""
        if isinstance(weight, int):
            weight = np.ones(weight, np.float32)
        groups = x.reshape(len(x), -1, group or len(weight))
        centred = groups - groups.mean(axis=2, keepdims=True)
        normed = centred / np.sqrt(np.square(centred).mean(axis=2, keepdims=True) + np.float32(eps))
        scaled = normed.reshape(len(x), -1, len(weight)) * weight
        return np.asarray(scaled if bias is None else scaled + bias, np.float32).reshape(x.shape)

    def scale_by_position(self, x: FloatArray, growth: float, length: int, ahead: int = 0) -> FloatArray:
        """See `Ops.scale_by_position`."""
        factors = 1 + growth * np.log1p((self._step.positions + ahead) // length)
        return np.asarray(x * factors.astype(np.float32)[:, None], np.float32)

    def stream_weights(
        self, mixes: FloatArray, scales: FloatArray, base: FloatArray, streams: int, rounds: int, eps: float
    ) -> FloatArray:
        """See `Ops.stream_weights`."""
        parts = (streams,) if mixes.shape[1] == streams else (streams, streams, streams * streams)
        mixed = mixes * np.repeat(scales, parts) + base
        joining: FloatArray = sigmoid(mixed[:, :streams]) + np.float32(eps)
        if len(parts) == 1:
            return joining
        going = np.float32(2) * sigmoid(mixed[:, streams : 2 * streams])
        matrix = mixed[:, 2 * streams :].reshape(-1, streams, streams)
        matrix = np.exp(matrix - matrix.max(axis=2, keepdims=True))
        matrix = matrix / matrix.sum(axis=2, keepdims=True) + np.float32(eps)
        for axis in (1, *(2, 1) * (rounds - 1)):
            matrix = matrix / (matrix.sum(axis=axis, keepdims=True) + np.float32(eps))
        return np.concatenate([joining, going, matrix.swapaxes(1, 2).reshape(len(mixes), -1)], axis=1)

    def moe(
        self,
        x: FloatArray,
        logits: FloatArray,
        experts: Experts,
        routing: Routing,
        residual: FloatArray | None,
        choice_bias: FloatArray | None = None,
        chosen: FloatArray | None = None,
    ) -> FloatArray:
        """See `Ops.moe`. ValueError for a routing that does not fit the number of experts."""
        out = np.zeros(x.shape, np.float32) if residual is None else np.array(residual, np.float32)
        indices_here = {
            expert: index for index, expert in enumerate(range(logits.shape[1]) if experts.ids is None else experts.ids)
        }
        tokens = np.zeros(logits.shape[1], np.uint64)
        told = [None] * len(x) if chosen is None else list(chosen.astype(np.int32))
        for row, row_logits, total, ids in zip(np.ascontiguousarray(x), logits, out, told, strict=True):
            indices, weights = choose_experts(row_logits, routing, choice_bias, ids)
            for index, weight in zip(indices, weights, strict=True):
                here = indices_here.get(int(index))
                if here is None:
                    continue
                tokens[index] += np.uint64(1)
                if experts.scales is not None:
                    weight = weight * experts.scales[index]
                total += weight * expert_output(experts, here, row)
        if self._usage is not None:
            self._usage.add(self._moe_layers, tokens)
        self._moe_layers += 1
        return out

    def short_convolution(
        self,
        x: FloatArray,
        weights: Sequence[FloatArray],
        biases: Sequence[FloatArray],
        memory: ReferenceStateMemory,
        layer: int,
        silu: bool,
    ) -> FloatArray:
        """See `Ops.short_convolution`."""
        added = np.concatenate(biases) if biases else None
        return state.short_convolution(self._step, x, np.concatenate(weights), added, memory.tails[layer], silu)

    def delta_rule(
        self,
        qkv: FloatArray,
        beta: FloatArray,
        decay: FloatArray,
        decay_weight: FloatArray,
        decay_bias: FloatArray,
        memory: ReferenceStateMemory,
        layer: int,
        heads: DeltaHeads,
    ) -> FloatArray:
        """See `Ops.delta_rule`."""
        matrices = memory.matrices[layer]
        return state.delta_rule(self._step, qkv, beta, decay, decay_weight, decay_bias, matrices, heads)

    def selective_scan(
        self,
        xbc: FloatArray,
        dt: FloatArray,
        decay_weight: FloatArray,
        decay_bias: FloatArray,
        skip: FloatArray,
        memory: ReferenceStateMemory,
        layer: int,
        heads: ScanHeads,
    ) -> FloatArray:
        """See `Ops.selective_scan`."""
        matrices = memory.matrices[layer]
        return state.selective_scan(self._step, xbc, dt, (decay_weight, decay_bias, skip), matrices, heads)

    def pool_windows(
        self,
        x: FloatArray,
        biases: Sequence[FloatArray],
        memory: ReferenceStateMemory,
        layer: int,
        ratio: int,
        widths: Sequence[int],
        overlap: bool,
    ) -> FloatArray:
        """See `Ops.pool_windows`."""
        return state.pool_windows(self._step, x, biases, memory.tails[layer], ratio, widths, overlap)

    def rms_norm_grouped(self, x: FloatArray, weight: FloatArray, groups: int, eps: float) -> FloatArray:
        """See `Ops.rms_norm_grouped`."""
        return np.asarray(self.rms_norm(x, x.shape[1] // groups, eps) * weight, np.float32)

    def norm_gated(self, x: FloatArray, weight: FloatArray, gate: FloatArray, eps: float) -> FloatArray:
        """See `Ops.norm_gated`."""
        return np.asarray(silu(gate) * self.rms_norm(x, weight, eps), np.float32)

    def select(self, x: FloatArray) -> FloatArray:
        """See `Ops.select`."""
        return x[self._step.sample_rows]


def first_visible(position: int, window: int | None, kind: WindowKind) -> int:
    """The first position that a token sees, as `Ops.attention` says."""
    if window is None:
        return 0
    return position // window * window if kind == "chunked" else max(0, position - window + 1)


def _bias_of(bias: RelativeBias, heads: int, apart: Any) -> FloatArray:
    """Return what `heads` query heads add to the scores of keys so far behind a query: [heads, keys]."""
    buckets = np.array(bias.buckets)[np.clip(apart, -bias.reach, bias.reach) + bias.reach]
    found: FloatArray = bias.values.reshape(-1, bias.heads)[buckets, bias.first : bias.first + heads].T
    return found


def _attention_of_row(
    query: FloatArray,
    keys: FloatArray,
    values: FloatArray,
    rule: ScoreRule,
    added: FloatArray | None,
) -> FloatArray:
    """softmax(query @ keys.T * scale + added) @ values for one token: query [kv_heads, group, d], keys and values
    [kv_heads, visible, d], added [kv_heads * group, visible].
    """
    scores = np.matmul(query, keys.transpose(0, 2, 1)) * np.float32(rule.scale)
    if added is not None:
        scores = scores + added.reshape(scores.shape)
    if rule.softcap is not None:
        scores = np.float32(rule.softcap) * np.tanh(scores / np.float32(rule.softcap))
    sink: Any = np.float32(-np.inf) if rule.sinks is None else rule.sinks
    if rule.sinks is not None:
        sink = sink.reshape(*scores.shape[:2], 1)
    largest = np.maximum(scores.max(axis=-1, keepdims=True), sink)
    weights = np.exp(scores - largest)
    weights /= weights.sum(axis=-1, keepdims=True, dtype=np.float32) + np.exp(sink - largest)
    out: FloatArray = np.matmul(weights, values)
    return out
