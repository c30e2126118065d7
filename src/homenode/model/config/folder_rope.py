"""The rotary embeddings that config.json describes."""

from __future__ import annotations

import math

from homenode.errors import UnsupportedError
from homenode.model.formats import limits
from homenode.model.formats.bounded_files import quoted
from homenode.model.formats.fields import Fields
from homenode.model.spec import RopeSpec

NEVER_TURNS = 1e30  # the divisor of a frequency, here as in GGUF files, of a pair of elements that stands still


def ropes_from_config(
    fields: Fields,
    theta: float,
    local_theta: float | None,
    position: int,
    head_dim: int,
    original_position: int | None = None,
    rotary_share: float = 1.0,
) -> tuple[RopeSpec, RopeSpec | None]:
    """The rope, and that of layers with a window where they have one of their own.

    From `rope_parameters`, or its older spelling: `rope_scaling` with `rope_theta`, and `rope_local_base_freq`, beside
    it. Of both, `rope_scaling` is what somebody has written by hand into a newer file, and transformers follows it.
    `theta`, `local_theta`, `original_position`, `rotary_share` (of a head that turns): where the file does not say;
    without the second all layers have one rope.
    """
    table = fields.table("rope_scaling")
    if table is None or not table.names():
        table = fields.table("rope_parameters") or Fields(fields.path, {})
    elif local_theta is not None and fields.has("rope_parameters"):
        raise UnsupportedError(
            f"{fields.path}: rope_scaling beside rope_parameters is not supported where layers have two ropes; keep "
            f"one of them"
        )
    if not table.holds_tables():
        rope = _rope(fields, table, theta, position, head_dim, original_position, rotary_share)
        if local_theta is None:
            return rope, None
        if fields.has("rope_parameters") and table.names():
            raise UnsupportedError(
                f"{fields.path}: rope_parameters for all layers together is not supported here; homenode wants one for "
                f"each kind of layer"
            )
        return rope, RopeSpec(
            theta=fields.number("rope_local_base_freq", local_theta, above=1.0, most=limits.MOST_THETA)
        )
    if local_theta is None:
        raise UnsupportedError(
            f"{fields.path}: rope parameters that differ between kinds of layers are not supported; homenode runs one "
            f"rope for all"
        )
    far, near = table.table("full_attention"), table.table("sliding_attention")
    empty = Fields(fields.path, {})
    return (
        _rope(empty, far or empty, theta, position, head_dim, None, rotary_share),
        _rope(empty, near or empty, local_theta, position, head_dim, None, rotary_share),
    )


def _rope(
    fields: Fields,
    table: Fields,
    default_theta: float,
    position: int,
    head_dim: int,
    original_position: int | None = None,
    rotary_share: float = 1.0,
) -> RopeSpec:
    """Return what `table` says, `rope_theta` and some others perhaps being in `fields`."""
    theta = table.optional_number("rope_theta", above=1.0, most=limits.MOST_THETA)
    if theta is None:
        theta = fields.number("rope_theta", default_theta, above=1.0, most=limits.MOST_THETA)
    rotary = _rotary_dim(fields, table, head_dim, rotary_share)
    kind = table.text("rope_type") or table.text("type") or "default"
    # Phi 3 has it beside the table, and what stands there wins.
    key = "original_max_position_embeddings"
    original = fields.optional_integer(key, maximum=limits.MOST_POSITION) or original_position
    original = original or table.integer(key, position, maximum=limits.MOST_POSITION)
    if kind == "proportional":  # all of the head's pairs, of which only the first turn
        turning = (head_dim if rotary is None else rotary) // 2
        factor = table.number("factor", 1.0, most=1e6)
        return RopeSpec(theta=theta, factors=(factor,) * turning + (NEVER_TURNS,) * (head_dim // 2 - turning))
    if kind in ("default", "mrope"):  # the second with axes of pictures: of text a token has one position on all
        return RopeSpec(theta=theta, rotary_dim=rotary)
    if kind == "linear":
        return RopeSpec(theta=theta, kind=kind, rotary_dim=rotary, factor=table.number("factor", most=1e6))
    if kind == "dynamic":
        factor = table.number("factor", most=1e6)
        return RopeSpec(theta=theta, kind=kind, rotary_dim=rotary, factor=factor, original_max_position=position)
    if kind == "llama3":
        return RopeSpec(
            theta=theta,
            kind=kind,
            rotary_dim=rotary,
            factor=table.number("factor", most=1e6),
            original_max_position=original,
            low_freq_factor=table.number("low_freq_factor", 1.0),
            high_freq_factor=table.number("high_freq_factor", 4.0),
        )
    if kind in ("longrope", "su"):  # one thing, which Phi 3 called by the second name first
        return RopeSpec(
            theta=theta,
            kind="longrope",
            rotary_dim=rotary,
            factor=table.number("factor", position / original, most=1e6),
            original_max_position=original,
            attention_factor=table.optional_number("attention_factor", most=1e6),
            short_factors=table.numbers("short_factor", most=1e6),
            long_factors=table.numbers("long_factor", most=1e6),
        )
    if kind == "yarn":
        return _yarn(table, theta, rotary, original, position)
    raise UnsupportedError(
        f"{fields.path}: rope scaling {quoted(kind)} is not supported; homenode runs default, linear, llama3, yarn, "
        f"longrope and dynamic",
        kind=kind,
    )


def _yarn(table: Fields, theta: float, rotary: int | None, original: int, position: int) -> RopeSpec:
    factor = table.number("factor", position / original, most=1e6)
    attention = table.optional_number("attention_factor", most=1e6)
    mscale, mscale_all = table.optional_number("mscale", least=0.0), table.optional_number("mscale_all_dim", least=0.0)
    if attention is None and mscale and mscale_all:
        attention = _yarn_scale(factor, mscale) / _yarn_scale(factor, mscale_all)
    return RopeSpec(
        theta=theta,
        kind="yarn",
        rotary_dim=rotary,
        factor=factor,
        original_max_position=original,
        attention_factor=attention,
        beta_fast=table.number("beta_fast", 32.0),
        beta_slow=table.number("beta_slow", 1.0),
        truncate=table.boolean("truncate", True),
    )


def _yarn_scale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _rotary_dim(fields: Fields, table: Fields, head_dim: int, share: float) -> int | None:
    part = table.optional_number("partial_rotary_factor", most=1.0)
    part = fields.number("partial_rotary_factor", share, most=1.0) if part is None else part
    return None if part == 1.0 else int(head_dim * part)
