"""Rotary position embedding: from a model's RopeSpec to one frequency for each pair of elements of a head.

Kinds and formulas, all float32: `default` (Su et al. 2021) theta^(-2i/d); `linear` divides positions, here frequencies,
by the factor; `dynamic` is the default as long as contexts stay within the trained length; `llama3` divides low
frequencies by the factor, keeps high ones and blends between (Llama 3.1 release); `yarn` blends by how often a pair
turns within the trained length, and scales cos and sin (Peng et al. 2023); `longrope` divides each by a factor of its
own, of one list for contexts up to the trained length and of another above it, and scales both (Ding et al. 2024).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from homenode.compute.ops import FloatArray
from homenode.errors import CheckpointError, UnsupportedError
from homenode.model.spec import ModelSpec, RopeSpec
from homenode.units import format_count

KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


@dataclass(frozen=True)
class Rope:
    """Arguments of `Ops.rope_angles`: frequencies [rotary_dim / 2] in radians per position, and the scale of cos and
    sin.

    `local`: of layers that see a window only, where theirs is another one. `axes`: of each frequency, by which of a
    step's rope positions it turns; none: all turn by the positions.
    """

    inverse_frequencies: FloatArray
    scale: float
    local: Rope | None = None
    axes: tuple[int, ...] = ()

    def with_sections(self, sections: tuple[int, ...], *, interleaved: bool) -> Rope:
        """The same, so many frequencies turning by time, row and column of pictures: one run after the other, or in
        turns, with time for what is left of them.
        """
        count = len(self.inverse_frequencies)
        if interleaved:
            axes = [
                axis if axis and number < 3 * sections[axis] else 0 for number in range(count) for axis in (number % 3,)
            ]
        else:
            axes = [axis for axis, size in enumerate(sections) for _ in range(size)]
        return replace(self, axes=tuple((axes + [0] * count)[:count]))


def rope_of(spec: ModelSpec, length: int | None = None) -> Rope:
    """The rotary frequencies of a model for contexts of at most `length` (None: its longest).

    UnsupportedError for a kind not in KINDS; CheckpointError when the figures contradict each other.
    """
    rope = spec.rope
    rotary = spec.head_dim if rope.rotary_dim is None else rope.rotary_dim
    _check(rope, rotary, spec.head_dim)
    exponents = np.arange(0, rotary, 2, dtype=np.float32) / np.float32(rotary)
    frequencies = np.float32(1) / np.power(np.float32(rope.theta), exponents)
    trained = rope.original_max_position or spec.max_position
    if rope.factors:
        # GGUF converters write llama3 scaling out as divisors, so that kind has nothing to add to them.
        frequencies = frequencies / np.array(rope.factors, np.float32)
    scale = 1.0
    match rope.kind:
        case "linear":
            frequencies = frequencies / np.float32(rope.factor)
        case "llama3" if not rope.factors:
            frequencies = _llama3(frequencies, rope, trained)
        case "yarn":
            frequencies = _yarn(frequencies, rope, rotary, trained)
            scale = rope.attention_factor if rope.attention_factor is not None else _yarn_scale(rope.factor)
        case "longrope":
            divisors = rope.long_factors if (length or spec.max_position) > trained else rope.short_factors
            frequencies = frequencies / np.array(divisors, np.float32)
            scale = (
                rope.attention_factor if rope.attention_factor is not None else _longrope_scale(rope.factor, trained)
            )
    local = rope_of(replace(spec, rope=spec.local_rope, local_rope=None)) if spec.local_rope else None
    return Rope(frequencies.astype(np.float32), scale, local)


def _check(rope: RopeSpec, rotary: int, head_dim: int) -> None:
    if rope.kind not in KINDS:
        raise UnsupportedError(
            f"rope scaling {rope.kind!r} is not supported; known kinds: {', '.join(KINDS)}", kind=rope.kind
        )
    if rotary < 2 or rotary % 2 or rotary > head_dim:
        raise CheckpointError(
            f"rotary dimension {rotary} must be even, at least 2 and at most the head's {head_dim}", rotary=rotary
        )
    _check_factors(rope, rotary // 2)
    numbers = {"theta": rope.theta, "factor": rope.factor, **{f"factors[{i}]": f for i, f in enumerate(rope.factors)}}
    for name, value in numbers.items():
        if not (math.isfinite(value) and value > 0):
            raise CheckpointError(f"rope {name} is {value}; a positive number is needed", name=name, value=value)
    if rope.kind == "llama3" and rope.high_freq_factor <= rope.low_freq_factor:
        raise CheckpointError(
            f"llama3 rope: high_freq_factor {rope.high_freq_factor} must be above low_freq_factor "
            f"{rope.low_freq_factor}"
        )
    if rope.kind == "yarn" and rope.theta <= 1:
        raise CheckpointError(f"yarn rope: theta is {rope.theta}; a number above 1 is needed")


def _check_factors(rope: RopeSpec, pairs: int) -> None:
    longrope = (rope.short_factors, rope.long_factors) if rope.kind == "longrope" else ()
    for kind, factors in (*(("longrope", each) for each in longrope), ("rope", rope.factors or None)):
        if factors is not None and len(factors) != pairs:
            raise CheckpointError(
                f"{len(factors)} {kind} factors were given, but a rotary dimension of {2 * pairs} has "
                f"{format_count(pairs, 'pair')}"
            )


def _llama3(frequencies: FloatArray, rope: RopeSpec, trained: int) -> FloatArray:
    """Keep pairs that turn more than high_freq_factor times within `trained` positions, slow down those below
    low_freq_factor, blend between.
    """
    turns = np.float32(trained) * frequencies / np.float32(2 * math.pi)
    blend = (turns - np.float32(rope.low_freq_factor)) / np.float32(rope.high_freq_factor - rope.low_freq_factor)
    keep = np.clip(blend, 0, 1)
    return np.asarray((1 - keep) * frequencies / np.float32(rope.factor) + keep * frequencies, np.float32)


def _yarn(frequencies: FloatArray, rope: RopeSpec, rotary: int, trained: int) -> FloatArray:
    """Pairs turning at least beta_fast times within `trained` positions keep their frequency, below beta_slow it is
    divided by the factor.
    """

    def pair_turning(times: float) -> float:
        return rotary * math.log(trained / (times * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair_turning(rope.beta_fast), pair_turning(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary - 1)
    width = high - low if high != low else 0.001
    slowed = np.clip((np.arange(rotary // 2, dtype=np.float32) - np.float32(low)) / np.float32(width), 0, 1)
    return np.asarray(frequencies / np.float32(rope.factor) * slowed + frequencies * (1 - slowed), np.float32)


def _yarn_scale(factor: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0


def _longrope_scale(factor: float, trained: int) -> float:
    return 1.0 if factor <= 1 or trained <= 1 else math.sqrt(1.0 + math.log(factor) / math.log(trained))
