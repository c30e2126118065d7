"""The ops as the native core hears them: every call appends to a program and returns a handle.

A handle's buffer is used again by later ops once the handle is gone, so nothing here may keep one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from homenode import _native
from homenode.compute.native.kv_layers import NativeKvLayers
from homenode.compute.ops import (
    ALL_KEYS,
    AttendedKeys,
    DeltaHeads,
    Experts,
    FloatArray,
    Routing,
    ScanHeads,
    ScoreRule,
)


class RecordingOps(_native.NativeRecorder):
    """`Ops` over the native recorder, whose methods take most calls as they are: here are those whose arguments it
    wants in another form. ValueError when shapes do not fit each other.
    """

    def embedding(self, table: _native.Weight, first: int = 0, vocabulary: int | None = None) -> _native.Tensor:
        """See `Ops.embedding`."""
        if vocabulary is None and first:
            raise ValueError(f"embedding: a table from row {first} of a vocabulary that is not said")
        return super().embedding(table, first, vocabulary or 0)

    def place_rows(self, x: _native.Tensor, first: int = 0, of_columns: int = 0, adds: bool = False) -> _native.Tensor:
        """See `Ops.place_rows`."""
        columns: dict[str, Any] = {"first": first, "of_columns": of_columns, "adds": adds} if of_columns else {}
        return super().place_rows(x, **columns)

    def rms_norm(self, x: _native.Tensor, weight: _native.Tensor | int, eps: float) -> _native.Tensor:
        """See `Ops.rms_norm`."""
        if isinstance(weight, int):
            weight = _native.constant(np.ones((1, weight), np.float32))  # times 1 is the same to the last bit
        return super().rms_norm(x, weight, eps)

    def split(self, x: _native.Tensor, widths: Sequence[int]) -> tuple[_native.Tensor, ...]:
        """See `Ops.split`."""
        return tuple(self.record_split(x, list(widths)))

    def rope_angles(
        self, inverse_frequencies: FloatArray, scale: float, behind: int = 0, axes: Sequence[int] = ()
    ) -> _native.Tensor:
        """See `Ops.rope_angles`. The left half of the columns is cos, the right half sin."""
        turned: dict[str, Any] = {"axes": list(axes)} if axes else {}
        return super().rope_angles(np.ascontiguousarray(inverse_frequencies, np.float32), scale, behind, **turned)

    def attention(
        self,
        q: _native.Tensor,
        k: _native.Tensor | None,
        v: _native.Tensor | None,
        cache: _native.KvCache | NativeKvLayers,
        layer: int,
        rule: ScoreRule,
        attended: AttendedKeys = ALL_KEYS,
    ) -> _native.Tensor:
        """See `Ops.attention`. ValueError for a window below 1 or a cap that is not above 0."""
        window, softcap, bias, pooled = rule.window, rule.softcap, rule.bias, attended.pooled
        if window is not None and window < 1:
            raise ValueError(f"an attention window of {window}; wanted at least 1, or None for no window")
        if softcap is not None and not softcap > 0:
            raise ValueError(f"attention scores capped at {softcap}; wanted more than 0, or None for no cap")
        layers = cache
        if isinstance(cache, NativeKvLayers):
            cache, layer = cache.place(layer)
        params = _native.AttentionParams(
            layer=layer,
            scale=rule.scale,
            window=window or 0,
            softcap=softcap or 0.0,
            sinks=rule.sinks,
            value_columns=attended.value_columns,
            chosen=attended.chosen if pooled is None else pooled.chosen,
            chosen_block=attended.chosen_block,
            slopes=None
            if rule.slopes is None
            else _native.constant(np.ascontiguousarray(rule.slopes[None], np.float32)),
            window_kind=rule.window_kind,
            causal=rule.mask != "all",
            **({"spans": True} if rule.mask == "spans" else {}),
            bias=None if bias is None else bias.values,
            buckets=() if bias is None else bias.buckets,
            bias_heads=0 if bias is None else bias.heads,
            first_head=0 if bias is None else bias.first,
        )
        if pooled is None:
            return self.record_attention(q, k, v, cache, params)
        if k is None or v is not None or attended.chosen is not None or not isinstance(layers, NativeKvLayers):
            raise ValueError("attention: pooled keys beside values, chosen tokens, or in memory of one shape")
        return self.record_pooled_attention(q, k, cache, params, pooled.rows, *layers.place(pooled.layer), pooled.ratio)

    def choose_tokens(
        self,
        q: _native.Tensor,
        weights: _native.Tensor,
        k: _native.Tensor,
        cache: _native.KvCache | NativeKvLayers,
        layer: int,
        count: int,
        ratio: int = 1,
    ) -> _native.Tensor:
        """See `Ops.choose_tokens`."""
        if isinstance(cache, NativeKvLayers):
            cache, layer = cache.place(layer)
        return super().choose_tokens(q, weights, k, cache, layer, count, ratio)

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
        return super().choose_blocks(q, k, cache, layer, block, count, local)

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
        return super().layer_norm(x, weight, bias, eps, group or 0)

    def clamped_mul(self, gate_up: _native.Tensor) -> _native.Tensor:
        """See `Ops.clamped_mul`."""
        return self.gelu_mul(gate_up, None, "clamped")

    def limited_mul(self, gate_up: _native.Tensor) -> _native.Tensor:
        """See `Ops.limited_mul`."""
        return self.gelu_mul(gate_up, None, "limited")

    def moe(
        self,
        x: _native.Tensor,
        logits: _native.Tensor,
        experts: Experts,
        routing: Routing,
        residual: _native.Tensor | None,
        choice_bias: _native.Tensor | None = None,
        chosen: _native.Tensor | None = None,
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
        how = _native.NativeRouting(**asdict(routing))
        return self.record_moe(x, logits, weights, how, residual, choice_bias, chosen)

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
        return self.record_delta_rule(
            qkv,
            beta,
            decay,
            decay_weight,
            decay_bias,
            memory,
            layer=layer,
            key_heads=heads.key_heads,
            interleaved=heads.interleaved,
            gain=heads.gain,
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
        return self.record_selective_scan(
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
