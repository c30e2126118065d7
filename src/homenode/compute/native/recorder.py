"""The ops as the native core hears them: every call appends to a program and returns a handle.

A handle's buffer is used again by later ops once the handle is gone, so nothing here may keep one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Literal

import numpy as np

from homenode import _native
from homenode.compute.native.kv_layers import NativeKvLayers
from homenode.compute.ops import (
    AttentionMask,
    DeltaHeads,
    Experts,
    FloatArray,
    PlainActivation,
    Precision,
    Routing,
    ScanHeads,
    WindowKind,
)


class RecordingOps:
    """`Ops` over a native recorder. ValueError when shapes do not fit each other."""

    def __init__(self, recorder: _native.NativeRecorder) -> None:
        self._recorder = recorder

    def embedding(self, table: _native.Weight, first: int = 0, vocabulary: int | None = None) -> _native.Tensor:
        """See `Ops.embedding`."""
        if vocabulary is None and first:
            raise ValueError(f"embedding: a table from row {first} of a vocabulary that is not said")
        return self._recorder.embedding(table, first, vocabulary or 0)

    def position_rows(self, table: _native.Weight, first: int = 0) -> _native.Tensor:
        """See `Ops.position_rows`. A step with a position that the table has no row of is refused."""
        return self._recorder.position_rows(table, first)

    def type_rows(self, table: _native.Weight) -> _native.Tensor:
        """See `Ops.type_rows`. A step with a type that the table has no row of is refused."""
        return self._recorder.type_rows(table)

    def stored_rows(self, table: _native.StoredTable, otherwise: int | None = None) -> _native.Tensor:
        """See `Ops.stored_rows`. A row that its file no longer has is NaN."""
        return self._recorder.stored_rows(table, otherwise)

    def received(self, columns: int) -> _native.Tensor:
        """See `Ops.received`. They are read where the caller of the step has them."""
        return self._recorder.received(columns)

    def sum(self, x: _native.Tensor) -> _native.Tensor:
        """See `Ops.sum`. x itself where the program has no group, or a group of one."""
        return self._recorder.sum(x)

    def gather(self, x: _native.Tensor, widths: Sequence[int]) -> _native.Tensor:
        """See `Ops.gather`. x itself where the program has no group, or a group of one."""
        return self._recorder.gather(x, list(widths))

    def rms_norm(self, x: _native.Tensor, weight: _native.Tensor | int, eps: float) -> _native.Tensor:
        """See `Ops.rms_norm`."""
        if isinstance(weight, int):
            weight = _native.constant(np.ones((1, weight), np.float32))  # times 1 is the same to the last bit
        return self._recorder.rms_norm(x, weight, eps)

    def linear(
        self,
        x: _native.Tensor,
        weights: Sequence[_native.Weight],
        biases: Sequence[_native.Tensor | None] = (),
        residual: _native.Tensor | None = None,
        precision: Precision = "usual",
    ) -> _native.Tensor:
        """See `Ops.linear`."""
        return self._recorder.linear(x, list(weights), list(biases), residual, precision)

    def split(self, x: _native.Tensor, widths: Sequence[int]) -> tuple[_native.Tensor, ...]:
        """See `Ops.split`."""
        return tuple(self._recorder.split(x, list(widths)))

    def linear_heads(self, x: _native.Tensor, weights: Sequence[_native.Weight]) -> _native.Tensor:
        """See `Ops.linear_heads`."""
        return self._recorder.linear_heads(x, list(weights))

    def join_heads(self, x: _native.Tensor, y: _native.Tensor, heads: int) -> _native.Tensor:
        """See `Ops.join_heads`."""
        return self._recorder.join_heads(x, y, heads)

    def rope_angles(self, inverse_frequencies: FloatArray, scale: float) -> _native.Tensor:
        """See `Ops.rope_angles`. The left half of the columns is cos, the right half sin."""
        return self._recorder.rope_angles(np.ascontiguousarray(inverse_frequencies, np.float32), scale)

    def rope(self, x: _native.Tensor, angles: _native.Tensor, head_dim: int, adjacent: bool = False) -> _native.Tensor:
        """See `Ops.rope`."""
        return self._recorder.rope(x, angles, head_dim, adjacent)

    def attention(
        self,
        q: _native.Tensor,
        k: _native.Tensor | None,
        v: _native.Tensor | None,
        cache: _native.KvCache | NativeKvLayers,
        layer: int,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        *,
        sinks: _native.Tensor | None = None,
        value_columns: int = 0,
        chosen: _native.Tensor | None = None,
        chosen_block: int = 1,
        slopes: FloatArray | None = None,
        window_kind: WindowKind = "sliding",
        mask: AttentionMask = "causal",
    ) -> _native.Tensor:
        """See `Ops.attention`. ValueError for a window below 1 or a cap that is not above 0."""
        if window is not None and window < 1:
            raise ValueError(f"an attention window of {window}; wanted at least 1, or None for no window")
        if softcap is not None and not softcap > 0:
            raise ValueError(f"attention scores capped at {softcap}; wanted more than 0, or None for no cap")
        if isinstance(cache, NativeKvLayers):
            cache, layer = cache.place(layer)
        params = _native.AttentionParams(
            layer=layer,
            scale=scale,
            window=window or 0,
            softcap=softcap or 0.0,
            sinks=sinks,
            value_columns=value_columns,
            chosen=chosen,
            chosen_block=chosen_block,
            slopes=None if slopes is None else _native.constant(np.ascontiguousarray(slopes[None], np.float32)),
            window_kind=window_kind,
            causal=mask == "causal",
        )
        return self._recorder.attention(q, k, v, cache, params)

    def choose_tokens(
        self,
        q: _native.Tensor,
        weights: _native.Tensor,
        k: _native.Tensor,
        cache: _native.KvCache | NativeKvLayers,
        layer: int,
        count: int,
    ) -> _native.Tensor:
        """See `Ops.choose_tokens`."""
        if isinstance(cache, NativeKvLayers):
            cache, layer = cache.place(layer)
        return self._recorder.choose_tokens(q, weights, k, cache, layer, count)

    def choose_blocks(
        self,
        q: _native.Tensor,
        k: _native.Tensor,
        cache: _native.KvCache | NativeKvLayers,
        layer: int,
        block: int,
        count: int,
        local: int,
    ) -> _native.Tensor:
        """See `Ops.choose_blocks`."""
        if isinstance(cache, NativeKvLayers):
            cache, layer = cache.place(layer)
        return self._recorder.choose_blocks(q, k, cache, layer, block, count, local)

    def layer_norm(
        self,
        x: _native.Tensor,
        weight: _native.Tensor | int,
        bias: _native.Tensor | None,
        eps: float,
        group: int | None = None,
    ) -> _native.Tensor:
        """See `Ops.layer_norm`."""
        if isinstance(weight, int):
            weight = _native.constant(np.ones((1, weight), np.float32))
        return self._recorder.layer_norm(x, weight, bias, eps, group or 0)

    def silu_mul(self, gate_up: _native.Tensor, up: _native.Tensor | None = None) -> _native.Tensor:
        """See `Ops.silu_mul`."""
        return self._recorder.silu_mul(gate_up, up)

    def gelu_mul(
        self,
        gate_up: _native.Tensor,
        up: _native.Tensor | None = None,
        form: Literal["gelu", "gelu_erf"] = "gelu",
    ) -> _native.Tensor:
        """See `Ops.gelu_mul`."""
        return self._recorder.gelu_mul(gate_up, up, form)

    def clamped_mul(self, gate_up: _native.Tensor) -> _native.Tensor:
        """See `Ops.clamped_mul`."""
        return self._recorder.gelu_mul(gate_up, None, "clamped")

    def activate(self, x: _native.Tensor, activation: PlainActivation) -> _native.Tensor:
        """See `Ops.activate`."""
        return self._recorder.activate(x, activation)

    def clamp(self, x: _native.Tensor, limit: float) -> _native.Tensor:
        """See `Ops.clamp`. ValueError for a limit that is not above 0."""
        if not limit > 0:
            raise ValueError(f"values limited to {limit}; wanted more than 0")
        return self._recorder.clamp(x, limit)

    def add(self, x: _native.Tensor, y: _native.Tensor) -> _native.Tensor:
        """See `Ops.add`."""
        return self._recorder.add(x, y)

    def multiply(self, x: _native.Tensor, y: _native.Tensor) -> _native.Tensor:
        """See `Ops.multiply`."""
        return self._recorder.multiply(x, y)

    def scale(self, x: _native.Tensor, factor: float | _native.Tensor) -> _native.Tensor:
        """See `Ops.scale`."""
        if isinstance(factor, _native.Tensor):
            return self._recorder.scale_by(x, factor)
        return self._recorder.scale(x, factor)

    def scale_by_position(self, x: _native.Tensor, growth: float, length: int, ahead: int = 0) -> _native.Tensor:
        """See `Ops.scale_by_position`."""
        return self._recorder.scale_by_position(x, growth, length, ahead)

    def gate_by_largest(self, x: _native.Tensor, logits: _native.Tensor) -> _native.Tensor:
        """See `Ops.gate_by_largest`."""
        return self._recorder.gate_by_largest(x, logits)

    def add_weighted(
        self, x: _native.Tensor, y: _native.Tensor, weights: _native.Tensor | None, width: int, offset: float = 0.0
    ) -> _native.Tensor:
        """See `Ops.add_weighted`."""
        return self._recorder.add_weighted(x, y, weights, width, offset)

    def match_magnitude(self, x: _native.Tensor, y: _native.Tensor, floor: float) -> _native.Tensor:
        """See `Ops.match_magnitude`."""
        return self._recorder.match_magnitude(x, y, floor)

    def relu_above(self, x: _native.Tensor, deviations: float) -> _native.Tensor:
        """See `Ops.relu_above`."""
        return self._recorder.relu_above(x, deviations)

    def soft_cap(self, x: _native.Tensor, cap: float) -> _native.Tensor:
        """See `Ops.soft_cap`. ValueError for a cap that is not above 0."""
        if not cap > 0:
            raise ValueError(f"values capped at {cap}; wanted more than 0")
        return self._recorder.soft_cap(x, cap)

    def moe(
        self,
        x: _native.Tensor,
        logits: _native.Tensor,
        experts: Experts,
        routing: Routing,
        residual: _native.Tensor | None,
        choice_bias: _native.Tensor | None = None,
    ) -> _native.Tensor:
        """See `Ops.moe`."""
        if experts.ids is not None and not experts.ids:
            raise ValueError("moe: none of the experts; leave it out where there are none")
        weights = _native.ExpertWeights(
            gate=experts.gate,
            up=experts.up,
            down=experts.down,
            ids=experts.ids or (),
            gate_bias=experts.gate_bias or (),
            up_bias=experts.up_bias or (),
            down_bias=experts.down_bias or (),
            scales=experts.scales,
            activation=experts.activation,
        )
        return self._recorder.moe(x, logits, weights, _native.NativeRouting(**asdict(routing)), residual, choice_bias)

    def add_gated(self, x: _native.Tensor, y: _native.Tensor, gate: _native.Tensor) -> _native.Tensor:
        """See `Ops.add_gated`."""
        return self._recorder.add_gated(x, y, gate)

    def short_convolution(
        self,
        x: _native.Tensor,
        weights: Sequence[_native.Tensor],
        biases: Sequence[_native.Tensor],
        memory: _native.StateMemory,
        layer: int,
        silu: bool,
    ) -> _native.Tensor:
        """See `Ops.short_convolution`."""
        return self._recorder.short_convolution(x, list(weights), list(biases), memory, layer, silu)

    def delta_rule(
        self,
        qkv: _native.Tensor,
        beta: _native.Tensor,
        decay: _native.Tensor,
        decay_weight: _native.Tensor,
        decay_bias: _native.Tensor,
        memory: _native.StateMemory,
        layer: int,
        heads: DeltaHeads,
    ) -> _native.Tensor:
        """See `Ops.delta_rule`."""
        return self._recorder.delta_rule(
            qkv,
            beta,
            decay,
            decay_weight,
            decay_bias,
            memory,
            layer=layer,
            key_heads=heads.key_heads,
            interleaved=heads.interleaved,
        )

    def selective_scan(
        self,
        xbc: _native.Tensor,
        dt: _native.Tensor,
        decay_weight: _native.Tensor,
        decay_bias: _native.Tensor,
        skip: _native.Tensor,
        memory: _native.StateMemory,
        layer: int,
        heads: ScanHeads,
    ) -> _native.Tensor:
        """See `Ops.selective_scan`."""
        return self._recorder.selective_scan(
            xbc,
            dt,
            decay_weight,
            decay_bias,
            skip,
            memory,
            layer=layer,
            per_group=heads.per_group,
            first=heads.first,
        )

    def rms_norm_grouped(self, x: _native.Tensor, weight: _native.Tensor, groups: int, eps: float) -> _native.Tensor:
        """See `Ops.rms_norm_grouped`."""
        return self._recorder.rms_norm_grouped(x, weight, groups, eps)

    def norm_gated(self, x: _native.Tensor, weight: _native.Tensor, gate: _native.Tensor, eps: float) -> _native.Tensor:
        """See `Ops.norm_gated`."""
        return self._recorder.norm_gated(x, weight, gate, eps)

    def regroup(self, x: _native.Tensor, widths: Sequence[int]) -> _native.Tensor:
        """See `Ops.regroup`."""
        return self._recorder.regroup(x, list(widths))

    def sigmoid_mul(self, x: _native.Tensor, gate: _native.Tensor) -> _native.Tensor:
        """See `Ops.sigmoid_mul`."""
        return self._recorder.sigmoid_mul(x, gate)

    def select(self, x: _native.Tensor) -> _native.Tensor:
        """See `Ops.select`."""
        return self._recorder.select(x)
