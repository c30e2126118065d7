"""The ops, evaluated at once with torch. Activations are float32 on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from homenode.compute.activations import PLAIN, gated, silu
from homenode.compute.expert_usage import ExpertUsage
from homenode.compute.ops import (
    ALL_KEYS,
    AttendedKeys,
    DeltaHeads,
    Experts,
    FloatArray,
    Precision,
    Routing,
    ScanHeads,
    ScoreRule,
)
from homenode.compute.ranks import RankGroup
from homenode.compute.row_ops import RowOps
from homenode.compute.torch import tensors  # noqa: F401 (what `RowOps` calls, of tensors)
from homenode.compute.torch.chosen import Blocks, choose_best_blocks, choose_positions, chosen_attention
from homenode.compute.torch.device import TorchDevice
from homenode.compute.torch.exchange import gather_columns, sum_over_ranks
from homenode.compute.torch.kv import TorchKvCache
from homenode.compute.torch.moe import add_experts, choose
from homenode.compute.torch.pooled import attend_to_both, pool_windows, stream_weights
from homenode.compute.torch.products import Product, finely
from homenode.compute.torch.scoring import Attention, Scoring
from homenode.compute.torch.state import (
    StateStep,
    TorchStateMemory,
    delta_rule,
    gates_of,
    selective_scan,
    short_convolution,
    softplus,
)
from homenode.compute.torch.step import DeviceStep, check_ids
from homenode.errors import UnsupportedError
from homenode.units import format_count


@dataclass
class Seen:
    """The features that a forward function turned out to use: learnt in its first run, to check and to capture later
    ones by.
    """

    vocabulary: int | None = None  # of the ids it looks up
    hidden: int | None = None  # columns it wants from the stage before
    cache: TorchKvCache | None = None
    state: TorchStateMemory | None = None
    usage: ExpertUsage = field(default_factory=ExpertUsage)  # counted in every run
    constants: dict[bytes, torch.Tensor] = field(default_factory=dict)  # frequencies and slopes, on the device


class TorchOps(RowOps):
    """`Ops` over tensors for one step. Weights are tensors [rows, columns], vectors float32 tensors."""

    def __init__(
        self,
        step: DeviceStep,
        device: TorchDevice,
        product: Product,
        attention: Attention,
        group: RankGroup | None,
        seen: Seen,
    ) -> None:
        self._step, self._device, self._product, self._attention = step, device, product, attention
        self._group, self._seen = group, seen
        self._moe_layers = 0  # seen so far

    def embedding(self, table: torch.Tensor, first: int = 0, vocabulary: int | None = None) -> torch.Tensor:
        """See `Ops.embedding`. ValueError for an id outside the vocabulary."""
        ids = self._step.ids
        self._seen.vocabulary = table.shape[0] if vocabulary is None else vocabulary
        if not self._step.captured:
            check_ids(self._step.host.ids, self._seen.vocabulary)
        if vocabulary is None:
            return table[ids].float()
        here = (ids >= first) & (ids < first + table.shape[0])
        rows = table[torch.where(here, ids - first, 0)].float()
        return torch.where(here.unsqueeze(1), rows, 0)

    def place_rows(self, x: torch.Tensor, first: int = 0, of_columns: int = 0, adds: bool = False) -> torch.Tensor:
        """See `Ops.place_rows`. ValueError for rows of another width, or another number of them."""
        places, rows = self._step.host.row_places, self._step.host.input_rows
        if places is None or rows is None:
            return x
        width, past = of_columns or x.shape[1], first + x.shape[1]
        if rows.shape != (len(places), width) or past > width:
            raise ValueError(f"rows {list(rows.shape)} at {len(places)} places of a step with rows {list(x.shape)}")
        at = torch.from_numpy(places).to(self._device.device).long()
        brought = torch.from_numpy(rows).to(self._device.device)[:, first:past]
        return x.index_add(0, at, brought) if adds else x.index_copy(0, at, brought)

    def position_rows(self, table: torch.Tensor, first: int = 0) -> torch.Tensor:
        """See `Ops.position_rows`."""
        return table[self._step.positions + first].float()

    def type_rows(self, table: torch.Tensor) -> torch.Tensor:
        """See `Ops.type_rows`. ValueError for a type that the table has no row of."""
        types = self._step.host.token_types
        self._step.by_values = True  # the host reads them
        if types is None:
            return table[0].float().expand(len(self._step.ids), -1)
        check_ids(types, table.shape[0])
        return table[torch.from_numpy(types).to(self._device.device).long()].float()

    def stored_rows(self, table: Any, otherwise: int | None = None) -> torch.Tensor:
        """See `Ops.stored_rows`. ValueError for an id past the table where there are none."""
        ids = self._step.host.ids
        ids = ids if otherwise is None else np.where(ids < table.rows, ids, otherwise)
        check_ids(ids, table.rows)
        self._step.by_values = True  # the host reads them
        rows = np.stack([table.read(int(i)) for i in ids]) if len(ids) else np.zeros((0, table.columns), np.float32)
        return torch.from_numpy(rows).to(self._device.device)

    def received(self, columns: int) -> torch.Tensor:
        """See `Ops.received`. ValueError when the step's rows are not so wide, or not there."""
        self._seen.hidden = columns
        hidden = self._step.hidden
        if hidden is None or hidden.shape != (self._step.ids.shape[0], columns):
            shape = None if hidden is None else tuple(hidden.shape)
            raise ValueError(
                f"the rows of the stage before are {shape}; {len(self._step.ids)} of "
                f"{format_count(columns, 'column')} were expected"
            )
        return hidden

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """See `Ops.sum`."""
        return sum_over_ranks(x, self._group, self._device, self._seen_waiting)

    def gather(self, x: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        """See `Ops.gather`."""
        return gather_columns(x, widths, self._group, self._device, self._seen_waiting)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor | int, eps: float) -> torch.Tensor:
        """See `Ops.rms_norm`."""
        groups = x.reshape(-1, weight if isinstance(weight, int) else weight.shape[0])
        scaled = groups * torch.rsqrt(groups.square().mean(dim=1, keepdim=True) + eps)
        return (scaled if isinstance(weight, int) else scaled * weight).view(x.shape)

    def linear(
        self,
        x: torch.Tensor,
        weights: Sequence[torch.Tensor],
        biases: Sequence[torch.Tensor | None] = (),
        residual: torch.Tensor | None = None,
        precision: Precision = "usual",
    ) -> torch.Tensor:
        """See `Ops.linear`."""
        product = finely(self._product) if precision == "fine" else self._product
        parts = [product(x, weight) for weight in weights]
        for i, bias in enumerate(biases):
            if bias is not None:
                parts[i] = parts[i] + bias
        joined = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return joined if residual is None else joined + residual

    def linear_heads(self, x: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
        """See `Ops.linear_heads`."""
        heads = x.split(x.shape[1] // len(weights), dim=1)
        return torch.cat([self.linear(head, (w,)) for head, w in zip(heads, weights, strict=True)], dim=1)

    def adapter_index(self) -> torch.Tensor:
        """See `Ops.adapter_index`."""
        self._step.by_values = True  # the host reads them
        given = self._step.host.adapters
        if given is None:
            return torch.full((len(self._step.ids), 1), -1.0, device=self._device.device)
        return torch.from_numpy(given).to(self._device.device).float()[self._step.sequence].unsqueeze(1)

    def linear_indexed(
        self,
        x: torch.Tensor,
        weights: Sequence[torch.Tensor | None],
        index: torch.Tensor,
        residual: torch.Tensor | None = None,
        first: int = 0,
    ) -> torch.Tensor:
        """See `Ops.linear_indexed`."""
        self._seen_waiting()
        named = index[:, 0] if len(index) == len(x) else index[self._step.rows, 0]
        columns = next(weight.shape[0] for weight in weights if weight is not None)
        total = x.new_zeros((len(x), columns)) if residual is None else residual.clone()
        for number, weight in enumerate(weights):
            rows = (named == number).nonzero().squeeze(1)
            if weight is not None and len(rows):
                total[rows, first : first + columns] += self._product(x[rows], weight)
        return total

    def rope_angles(
        self, inverse_frequencies: FloatArray, scale: float, behind: int = 0, axes: Sequence[int] = ()
    ) -> torch.Tensor:
        """See `Ops.rope_angles`. The left half of the columns is cos, the right half sin."""
        turned = self._step.host.rope_positions
        if turned is None or not axes:
            positions = self._step.positions.unsqueeze(1)
        else:
            positions = torch.from_numpy(turned[list(axes)].T.copy()).to(self._device.device)
        angles = (positions - behind).float() * self._constant(inverse_frequencies)
        return torch.cat([torch.cos(angles), torch.sin(angles)], dim=1) * scale

    def rope(self, x: torch.Tensor, angles: torch.Tensor, head_dim: int, adjacent: bool = False) -> torch.Tensor:
        """See `Ops.rope`."""
        half = angles.shape[1] // 2
        cos, sin = angles[:, None, :half], angles[:, None, half:]
        heads = x.reshape(x.shape[0], -1, head_dim)
        if adjacent:
            left, right = heads[..., : 2 * half : 2], heads[..., 1 : 2 * half : 2]
        else:
            left, right = heads[..., :half], heads[..., half : 2 * half]
        turned = (left * cos - right * sin, right * cos + left * sin, heads[..., 2 * half :])
        return torch.cat(turned, dim=-1).view(x.shape)

    def attention(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        cache: TorchKvCache,
        layer: int,
        rule: ScoreRule,
        attended: AttendedKeys = ALL_KEYS,
    ) -> torch.Tensor:
        """See `Ops.attention`."""
        shape, step, rows = cache.geometry.layers[layer], self._step, q.shape[0]
        self._seen.cache = cache
        if "written" not in step.planned:
            step.planned["written"] = step.slots(step.sequence, step.positions, cache.geometry.block_size)
        if k is not None:
            keys, values = (None if side is None else side.reshape(rows, shape.kv_heads, -1) for side in (k, v))
            assert keys is not None
            cache.store(layer, step.planned["written"], keys, values)
        queries = q.reshape(rows, shape.kv_heads, -1, shape.key_width)
        falling = None if rule.slopes is None else self._constant(rule.slopes)
        biases = None
        if (bias := rule.bias) is not None:
            here = slice(bias.first, bias.first + queries.shape[1] * queries.shape[2])
            biases = bias.values.view(-1, bias.heads)[list(bias.buckets), here].T
        if rule.mask == "spans":
            if step.host.seen_spans is not None:
                raise UnsupportedError("attention both ways within a picture is not supported with torch")
            rule = replace(rule, mask="causal")
        how = Scoring(rule.scale, rule.window, rule.softcap, rule.sinks, falling, biases, rule.window_kind, rule.mask)
        if (pooled := attended.pooled) is not None:
            self._store_windows(cache, pooled.layer, pooled.rows, pooled.ratio)
            found = attend_to_both(queries[:, 0], cache, layer, step, how, pooled)
        elif attended.chosen is not None:
            found = chosen_attention(queries, cache, layer, step, how, attended.chosen, attended.chosen_block)
        else:
            found = self._attention(queries, cache, layer, step, how)
        return (found[..., : attended.value_columns] if attended.value_columns else found).reshape(rows, -1)

    def _store_windows(self, cache: TorchKvCache, layer: int, rows: torch.Tensor, ratio: int) -> None:
        """Store those of `rows` [tokens, width] whose tokens end a window of `ratio`."""
        step = self._step
        slots = step.slots(step.sequence, step.positions, cache.geometry.block_size)
        if ratio == 1:
            cache.store(layer, slots, rows.unsqueeze(1), None)
            return
        step.by_values = True
        ends = (step.positions % ratio == ratio - 1).nonzero().squeeze(1)
        cache.store_windows(layer, slots[ends], rows[ends], ratio)

    def choose_tokens(
        self,
        q: torch.Tensor,
        weights: torch.Tensor,
        k: torch.Tensor,
        cache: TorchKvCache,
        layer: int,
        count: int,
        ratio: int = 1,
    ) -> torch.Tensor:
        """See `Ops.choose_tokens`."""
        step, rows, width = self._step, k.shape[0], k.shape[1]
        self._seen.cache = cache
        self._store_windows(cache, layer, k, ratio)
        return choose_positions(q.reshape(rows, -1, width), weights, cache, layer, step, count, ratio)

    def choose_blocks(
        self, q: torch.Tensor, k: torch.Tensor, cache: TorchKvCache, layer: int, block: int, count: int, local: int
    ) -> torch.Tensor:
        """See `Ops.choose_blocks`."""
        step, rows, width = self._step, k.shape[0], k.shape[1]
        self._seen.cache = cache
        slots = step.slots(step.sequence, step.positions, cache.geometry.block_size)
        cache.store(layer, slots, k.reshape(rows, 1, width), None)
        return choose_best_blocks(q.reshape(rows, -1, width), cache, layer, step, Blocks(block, count, local))

    def layer_norm(
        self,
        x: torch.Tensor,
        weight: torch.Tensor | int,
        bias: torch.Tensor | None,
        eps: float,
        group: int | None = None,
    ) -> torch.Tensor:
        """See `Ops.layer_norm`."""
        if isinstance(weight, int):
            weight = x.new_ones(weight)
        width = group or weight.shape[0]
        normed = torch.nn.functional.layer_norm(x.reshape(x.shape[0], -1, width), (width,), eps=eps)
        scaled = normed.view(x.shape[0], -1, weight.shape[0]) * weight
        return (scaled if bias is None else scaled + bias).view(x.shape)

    def scale_by_position(self, x: torch.Tensor, growth: float, length: int, ahead: int = 0) -> torch.Tensor:
        """See `Ops.scale_by_position`."""
        turns = torch.div(self._step.positions + ahead, length, rounding_mode="floor")
        return x * (1 + growth * torch.log1p(turns.double())).float().unsqueeze(1)

    def stream_weights(
        self, mixes: torch.Tensor, scales: torch.Tensor, base: torch.Tensor, streams: int, rounds: int, eps: float
    ) -> torch.Tensor:
        """See `Ops.stream_weights`."""
        return stream_weights(mixes, scales, base, streams, rounds, eps)

    def moe(
        self,
        x: torch.Tensor,
        logits: torch.Tensor,
        experts: Experts,
        routing: Routing,
        residual: torch.Tensor | None,
        choice_bias: torch.Tensor | None = None,
        chosen: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `Ops.moe`. ValueError unless 1 <= chosen <= experts."""
        self._seen_waiting()
        biases = (experts.gate_bias, experts.up_bias, experts.down_bias)

        def mlp(rows: torch.Tensor, index: int) -> torch.Tensor:
            gate_bias, up_bias, down_bias = (None if of is None else of[index] for of in biases)
            up = self.linear(rows, (experts.up[index],), (up_bias,))
            if experts.gate:
                gate = self.linear(rows, (experts.gate[index],), (gate_bias,))
                inner = gated(gate, up, experts.activation)
            else:
                inner = PLAIN[experts.activation](up)
            return self.linear(inner, (experts.down[index],), (down_bias,))

        routes = choose(logits, routing, choice_bias, experts.scales, chosen)
        out, tokens = add_experts(x, routes, logits.shape[1], experts.ids, mlp, residual)
        self._seen.usage.add(self._moe_layers, tokens)
        self._moe_layers += 1
        return out

    def short_convolution(
        self,
        x: torch.Tensor,
        weights: Sequence[torch.Tensor],
        biases: Sequence[torch.Tensor],
        memory: TorchStateMemory,
        layer: int,
        silu: bool,
    ) -> torch.Tensor:
        """See `Ops.short_convolution`."""
        found = short_convolution(self._state_step(memory), x, weights, biases, memory.tails[layer])
        result: torch.Tensor = PLAIN["silu"](found) if silu else found
        return result

    def pool_windows(
        self,
        x: torch.Tensor,
        biases: Sequence[torch.Tensor],
        memory: TorchStateMemory,
        layer: int,
        ratio: int,
        widths: Sequence[int],
        overlap: bool,
    ) -> torch.Tensor:
        """See `Ops.pool_windows`."""
        state, tails = self._state_step(memory), memory.tails[layer]
        return pool_windows(self._step, state, x, biases, tails, ratio, widths, overlap)

    def delta_rule(
        self,
        qkv: torch.Tensor,
        beta: torch.Tensor,
        decay: torch.Tensor,
        decay_weight: torch.Tensor,
        decay_bias: torch.Tensor,
        memory: TorchStateMemory,
        layer: int,
        heads: DeltaHeads,
    ) -> torch.Tensor:
        """See `Ops.delta_rule`."""
        gates = gates_of(beta, decay, decay_weight, decay_bias, heads.gain)
        return delta_rule(self._state_step(memory), qkv, gates, memory.matrices[layer], heads)

    def selective_scan(
        self,
        xbc: torch.Tensor,
        dt: torch.Tensor,
        decay_weight: torch.Tensor,
        decay_bias: torch.Tensor,
        skip: torch.Tensor,
        memory: TorchStateMemory,
        layer: int,
        heads: ScanHeads,
    ) -> torch.Tensor:
        """See `Ops.selective_scan`."""
        share = softplus(dt + decay_bias)
        gates = (share, torch.exp(decay_weight * share))
        return selective_scan(self._state_step(memory), xbc, gates, skip, memory.matrices[layer], heads)

    def rms_norm_grouped(self, x: torch.Tensor, weight: torch.Tensor, groups: int, eps: float) -> torch.Tensor:
        """See `Ops.rms_norm_grouped`."""
        return self.rms_norm(x.contiguous(), x.shape[1] // groups, eps) * weight

    def norm_gated(self, x: torch.Tensor, weight: torch.Tensor, gate: torch.Tensor, eps: float) -> torch.Tensor:
        """See `Ops.norm_gated`."""
        result: torch.Tensor = silu(gate) * self.rms_norm(x.contiguous(), weight, eps)
        return result

    def select(self, x: torch.Tensor) -> torch.Tensor:
        """See `Ops.select`."""
        return x[self._step.rows]

    def _state_step(self, memory: TorchStateMemory) -> StateStep:
        self._seen.state = memory
        if self._step.state is None:
            raise ValueError("the step names no slots of the state memory")
        return self._step.state

    def _constant(self, values: FloatArray) -> torch.Tensor:
        """On the device, made once, in the first run: nothing may be copied from the host where a step is captured."""
        key = values.tobytes()
        if key not in self._seen.constants:
            self._seen.constants[key] = torch.tensor(values, dtype=torch.float32, device=self._device.device)
        return self._seen.constants[key]

    def _seen_waiting(self) -> None:
        """The host decides something here, or waits for other processes."""
        self._step.by_values = True
