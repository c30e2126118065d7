"""The mixers that layers with a state may have in place of attention, or beside it, besides gated delta nets: their
figures, and what of them a rank has.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from homenode.compute.ops import IntArray, LayerKv, LayerState
from homenode.model.part import IndexRange, ModelPart
from homenode.model.spec import ModelSpec, StateMixer

# What becomes of the outputs y of a recurrence and their gate z: the norm of y * silu(z), the norm of y times silu(z),
# or y * silu(z).
Gating = Literal["gate_first", "norm_first", "no_norm"]


@dataclass(frozen=True)
class ScanSpec:
    """The recurrence of Mamba 2 (Dao and Gu 2024) behind a short convolution. Each of `heads` of `head_dim` values has
    a matrix [state_width, head_dim]; `groups` of heads have their inputs and outputs in common.
    """

    layers: tuple[int, ...]  # that have it, ascending
    heads: int
    head_dim: int
    groups: int
    state_width: int
    taps: int  # tokens before its own that the convolution of a channel reads
    gating: Gating = "gate_first"
    convolution_bias: bool = True
    input_bias: bool = False
    output_bias: bool = False

    @property
    def per_group(self) -> int:
        """Heads of a group."""
        return self.heads // self.groups

    @property
    def parts(self) -> int:
        """See `StateMixer.parts`: its heads."""
        return self.heads

    @property
    def together(self) -> int:
        """See `StateMixer.together`: a norm is over the heads of a group."""
        return 1 if self.gating == "no_norm" else self.per_group

    @property
    def columns(self) -> tuple[str, int]:
        """See `StateMixer.columns`."""
        return "scan_inner", self.head_dim

    def groups_in(self, part: ModelPart) -> IndexRange:
        """The groups of the heads that are here."""
        first, past = part.state_groups.first // self.per_group, -(-part.state_groups.end // self.per_group)
        return IndexRange(first, past - first)

    def norm_is_apart(self, part: ModelPart) -> bool:
        """Return whether a norm is over what several ranks have."""
        return any(count % self.together for count in part.state_counts)

    def dimensions(self) -> dict[str, int]:
        """See `StateMixer.dimensions`."""
        return self._lengths(self.heads, self.groups) | {"scan_norm": self.heads * self.head_dim}

    def ranges(self, part: ModelPart) -> dict[str, IndexRange]:
        """See `StateMixer.ranges`."""
        heads, groups = part.state_groups, self.groups_in(part)
        before, counts = self._lengths(heads.first, groups.first), self._lengths(heads.count, groups.count)
        found = {name: IndexRange(before[name], count) for name, count in counts.items()}
        whole = IndexRange(0, self.heads * self.head_dim)
        return found | {"scan_norm": whole if self.norm_is_apart(part) else found["scan_inner"]}

    def state(self, part: ModelPart) -> LayerState:
        """See `StateMixer.state`."""
        heads = part.state_groups.count
        channels = heads * self.head_dim + 2 * self.groups_in(part).count * self.state_width
        return LayerState(channels, self.taps, heads, self.state_width, self.head_dim)

    def by_kv_head(self, part: ModelPart) -> tuple[IntArray, IntArray]:
        """See `StateMixer.by_kv_head`: with heads go the groups that they read, the last of them again where others
        read more.
        """
        heads, here = in_runs(part.state_groups.count, part.kv_heads.count), self.groups_in(part)
        count, each = heads.shape[1], self.per_group
        first, last = ((part.state_groups.first + heads[:, end]) // each - here.first for end in (0, -1))
        most = -(-count // each) + (count % each > 0 and each % count > 0)
        groups = np.minimum(first[:, None] + np.arange(most, dtype=np.int32), last[:, None])
        inner, inputs = part.state_groups.count * self.head_dim, here.count * self.state_width
        read = columns_of(groups, self.state_width)
        return np.concatenate([columns_of(heads, self.head_dim), inner + read, inner + inputs + read], axis=1), heads

    def _lengths(self, heads: int, groups: int) -> dict[str, int]:
        inner, each, width = heads * self.head_dim, groups * self.state_width, self.taps + 1
        return {
            "scan_heads": heads,
            "scan_inner": inner,
            "scan_groups": each,
            "scan_inner_taps": inner * width,
            "scan_groups_taps": each * width,
        }


@dataclass(frozen=True)
class ConvolutionSpec:
    """A short convolution of each of `channels` by itself, between two gates."""

    layers: tuple[int, ...]  # that have it, ascending
    channels: int
    taps: int  # tokens before its own that the convolution of a channel reads
    bias: bool = False

    @property
    def parts(self) -> int:
        """See `StateMixer.parts`: its channels."""
        return self.channels

    @property
    def together(self) -> int:
        """See `StateMixer.together`."""
        return 1

    @property
    def columns(self) -> tuple[str, int]:
        """See `StateMixer.columns`."""
        return "channels", 1

    def dimensions(self) -> dict[str, int]:
        """See `StateMixer.dimensions`."""
        return {"channels": self.channels, "channel_taps": self.channels * (self.taps + 1)}

    def ranges(self, part: ModelPart) -> dict[str, IndexRange]:
        """See `StateMixer.ranges`."""
        here, width = part.state_groups, self.taps + 1
        return {"channels": here, "channel_taps": IndexRange(here.first * width, here.count * width)}

    def state(self, part: ModelPart) -> LayerState:
        """See `StateMixer.state`."""
        return LayerState(part.state_groups.count, self.taps)

    def by_kv_head(self, part: ModelPart) -> tuple[IntArray, IntArray]:
        """See `StateMixer.by_kv_head`."""
        channels = in_runs(part.state_groups.count, part.kv_heads.count)
        return channels, channels[:, :0]


def in_runs(count: int, kv_heads: int) -> IntArray:
    """The numbers from 0 to count - 1, equally many for each KV head [KV heads, so many]."""
    return np.arange(count, dtype=np.int32).reshape(kv_heads, -1)


def columns_of(numbers: IntArray, width: int) -> IntArray:
    """The columns of each row's numbers [rows, n], of which each has `width`: [rows, n * width]."""
    columns: IntArray = np.add(numbers[:, :, None] * width, np.arange(width, dtype=np.int32))
    return columns.reshape(len(numbers), -1)


def with_mixer(spec: ModelSpec, mixer: StateMixer, attends: Collection[int]) -> ModelSpec:
    """The figures of a model, some of whose layers have such a mixer; those of `attends` keep keys and values."""
    layers = range(spec.num_layers)
    if len(attends) < spec.num_layers:
        kept = LayerKv(spec.num_kv_heads, spec.head_dim, spec.head_dim)
        spec = replace(spec, layer_kv=tuple(kept if layer in attends else None for layer in layers))
    if not mixer.layers:
        return spec
    spec = replace(spec, mixer=mixer, state_groups=mixer.parts)
    state = mixer.state(ModelPart.whole(spec))
    return replace(spec, layer_states=tuple(state if layer in mixer.layers else None for layer in layers))


def has_mixer(spec: ModelSpec, _part: ModelPart, layer: int | None) -> bool:
    """The layer has such a mixer."""
    return spec.mixer is not None and layer in spec.mixer.layers


def attends(spec: ModelSpec, _part: ModelPart, layer: int | None) -> bool:
    """The layer has attention."""
    return layer is not None and spec.kv_of(layer) is not None
