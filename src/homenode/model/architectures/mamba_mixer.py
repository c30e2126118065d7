"""The parts that models with the recurrence of Mamba 2 share (Dao and Gu 2024): its projections, the short convolution
before it, the gate and the norm behind it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from homenode.compute.ops import Ops, Precision, ScanHeads, Tensor
from homenode.errors import UnsupportedError
from homenode.model.architectures import stage, tables
from homenode.model.architectures.parameters import Condition, ForwardContext, Parameter
from homenode.model.architectures.pre_norm import forward_with
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.formats.bounded_files import damaged, quoted
from homenode.model.formats.fields import Fields
from homenode.model.formats.tensor_parts import rows_of
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec, TensorEntry, Tensors
from homenode.model.state_mixers import ScanSpec, attends, has_mixer

KEYS = frozenset("ssm.conv_kernel ssm.state_size ssm.group_count ssm.time_step_rank ssm.inner_size".split())
FIELDS = frozenset(
    "mamba_n_heads mamba_n_groups mamba_d_state mamba_d_head mamba_d_conv mamba_expand mamba_conv_bias "
    "mamba_proj_bias time_step_limit".split()
)
HARMLESS = dict.fromkeys(
    "mamba_chunk_size chunk_size use_mamba_kernels mamba_ssm_cache_dtype mamba_ssm_dtype".split(),
    "how, not what, transformers computes",
) | dict.fromkeys("time_step_min time_step_max time_step_floor".split(), "what steps begin with in training")
# Rows of what projects to the inputs: the gate z, the values x, inputs B and outputs C of groups, and steps.
_IN = {"z": "scan_inner", "x": "scan_inner", "b": "scan_groups", "c": "scan_groups", "dt": "scan_heads"}
_OLDER = {"linear_attention": "mamba", "full_attention": "attention"}
_CONVOLVED = ("x", "b", "c")
_HELD = re.compile(
    r"model\.layers\.[0-9]+\.(mamba|mixer)\.(?P<rest>(in_proj|conv1d)\.(weight|bias)|A_log|D|norm\.weight)"
)


def _attending(when: Condition) -> Condition:
    return lambda spec, part, layer: attends(spec, part, layer) and when(spec, part, layer)


# Of layers with attention, where some have none
ATTENTION = tuple(
    replace(each, when=_attending(each.when)) for each in (*tables.PROJECTIONS, *tables.QKV_BIASES, *tables.OUTPUT_BIAS)
)


def _scan(spec: ModelSpec) -> ScanSpec | None:
    return spec.mixer if isinstance(spec.mixer, ScanSpec) else None


def _when(field: str) -> Condition:
    """The condition of what a layer has where the figures of its recurrence say `field`."""

    def has(spec: ModelSpec, part: ModelPart, layer: int | None) -> bool:
        return has_mixer(spec, part, layer) and bool(getattr(_scan(spec), field, False))

    return has


def _has_norm(spec: ModelSpec, part: ModelPart, layer: int | None) -> bool:
    scan = _scan(spec)
    return has_mixer(spec, part, layer) and scan is not None and scan.gating != "no_norm"


def parameters(module: str) -> tuple[Parameter, ...]:
    """The lines of the parameter table of layers that have it under this name."""

    def line(key: str, name: str, gguf: str, shape: tuple[str, ...], when: Condition) -> Parameter:
        return Parameter(key, f"model.layers.{{layer}}.{module}.{name}", shape, f"blk.{{layer}}.{gguf}", when)

    input_bias, convolution_bias = _when("input_bias"), _when("convolution_bias")
    return (
        *(
            line(f"scan_{part}", f"in_proj.{part}.weight", f"ssm_in.{part}.weight", (rows, "hidden"), has_mixer)
            for part, rows in _IN.items()
        ),
        *(
            line(f"scan_{part}_bias", f"in_proj.{part}.bias", f"ssm_in.{part}.bias", (rows,), input_bias)
            for part, rows in _IN.items()
        ),
        *(
            line(
                f"conv_{part}", f"conv1d.{part}.weight", f"ssm_conv1d.{part}.weight", (f"{_IN[part]}_taps",), has_mixer
            )
            for part in _CONVOLVED
        ),
        *(
            line(f"conv_{part}_bias", f"conv1d.{part}.bias", f"ssm_conv1d.{part}.bias", (_IN[part],), convolution_bias)
            for part in _CONVOLVED
        ),
        line("decay_weight", "A_log", "ssm_a", ("scan_heads",), has_mixer),
        line("decay_bias", "dt_bias", "ssm_dt.bias", ("scan_heads",), has_mixer),
        line("skip", "D", "ssm_d", ("scan_heads",), has_mixer),
        line("scan_norm", "norm.weight", "ssm_norm.weight", ("scan_norm",), _has_norm),
        line("scan_o", "out_proj.weight", "ssm_out.weight", ("hidden", "scan_inner"), has_mixer),
        line("scan_o_bias", "out_proj.bias", "ssm_out.bias", ("hidden",), _when("output_bias")),
    )


def gguf_names(module: str) -> dict[str, str]:
    """Tensors of GGUF files that are no parameter by themselves."""
    front = f"model.layers.{{layer}}.{module}"
    return {
        f"blk.{{layer}}.{gguf}.{kind}": f"{front}.{name}.{kind}"
        for gguf, name in (("ssm_in", "in_proj"), ("ssm_conv1d", "conv1d"))
        for kind in ("weight", "bias")
    }


def refuse_step_limit(fields: Fields) -> None:
    """UnsupportedError where steps are said to have limits, which transformers applies to prompts and not to
    answers.
    """
    limit = fields.numbers("time_step_limit", above=-1.0, most=math.inf)
    if limit and limit != (0.0, math.inf):
        raise UnsupportedError(
            f"{fields.path}: time_step_limit {list(limit)} is not supported; homenode wants [0.0, Infinity] there"
        )


def refuse_other_layers(fields: Fields, kind: str) -> None:
    """UnsupportedError for `layer_types` that ask for another kind of layer than all of the class's are."""
    if other := next((each for each in fields.texts("layer_types") if each not in (kind, _OLDER.get(kind))), None):
        raise UnsupportedError(
            f"{fields.path}: layer_types with {quoted(other)} is not supported here; homenode runs {kind} in all "
            "layers of this model"
        )


def check_heads(fields: Fields, key: str, scan: ScanSpec) -> ScanSpec:
    """The same; CheckpointError where its heads, which `key` tells, cannot be divided into its groups."""
    if scan.heads % scan.groups:
        raise fields.wrong(key, scan.heads, f"a multiple of {scan.groups} groups")
    return scan


def expanded(fields: Fields, hidden: int) -> int:
    """Columns of the values of all heads, where they are a multiple of a row's."""
    return fields.integer("mamba_expand", 2, maximum=64) * hidden


def read_folder(fields: Fields, layers: Sequence[int], inner: int) -> ScanSpec:
    """The figures that config.json has as `mamba_...`. `inner`: columns of the values of all heads. CheckpointError
    where heads do not make as many.
    """
    refuse_step_limit(fields)
    heads = fields.integer("mamba_n_heads", 128, maximum=limits.MOST_HEADS)
    told = not fields.is_text("mamba_d_head")  # "auto" is what a missing width means as well
    head_dim = (
        fields.integer("mamba_d_head", max(inner // heads, 1), maximum=limits.MOST_HEAD_DIM) if told else inner // heads
    )
    if heads * head_dim != inner:
        raise fields.wrong("mamba_n_heads", heads, f"a divisor of the inner width {inner} into heads of {head_dim}")
    bias = fields.boolean("mamba_proj_bias", False)
    scan = ScanSpec(
        layers=tuple(layers),
        heads=heads,
        head_dim=head_dim,
        groups=fields.integer("mamba_n_groups", 1, maximum=limits.MOST_HEADS),
        state_width=fields.integer("mamba_d_state", 256, maximum=limits.MOST_HEAD_DIM),
        taps=fields.integer("mamba_d_conv", 4, minimum=2, maximum=64) - 1,
        convolution_bias=fields.boolean("mamba_conv_bias", True),
        input_bias=bias,
        output_bias=bias,
    )
    return check_heads(fields, "mamba_n_heads", scan)


def read_plain_names(fields: Fields, layers: Sequence[int], heads: int, head_dim: int, state_width: int) -> ScanSpec:
    """The same of a config.json that has them without `mamba_` in front."""
    bias = fields.boolean("use_bias", False)
    return ScanSpec(
        layers=tuple(layers),
        heads=heads,
        head_dim=head_dim,
        groups=fields.integer("n_groups", 8, maximum=limits.MOST_HEADS),
        state_width=state_width,
        taps=fields.integer("conv_kernel", 4, minimum=2, maximum=64) - 1,
        convolution_bias=fields.boolean("use_conv_bias", True),
        input_bias=bias,
        output_bias=bias,
    )


def read_gguf(config: GgufConfig, layers: Sequence[int], module: str) -> ScanSpec:
    """The same of a GGUF file. `module`: what the layers call it."""
    fields = config.fields
    heads = fields.integer("ssm.time_step_rank", maximum=limits.MOST_HEADS)
    inner = fields.integer("ssm.inner_size", maximum=limits.MOST_INTERMEDIATE)
    if inner % heads or inner // heads > limits.MOST_HEAD_DIM:
        raise fields.wrong("ssm.inner_size", inner, f"a multiple of {heads} heads")
    front = f"model.layers.{layers[0] if layers else 0}.{module}"
    scan = ScanSpec(
        layers=tuple(layers),
        heads=heads,
        head_dim=inner // heads,
        groups=fields.integer("ssm.group_count", 1, maximum=limits.MOST_HEADS),
        state_width=fields.integer("ssm.state_size", maximum=limits.MOST_HEAD_DIM),
        taps=fields.integer("ssm.conv_kernel", minimum=2, maximum=64) - 1,
        gating="gate_first" if f"{front}.norm.weight" in config.tensors else "no_norm",
        convolution_bias=f"{front}.conv1d.bias" in config.tensors,
        input_bias=f"{front}.in_proj.bias" in config.tensors,
        output_bias=f"{front}.out_proj.bias" in config.tensors,
    )
    return check_heads(fields, "ssm.time_step_rank", scan)


def split_tensors(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors of a GGUF file, what projects to the inputs and what is convolved as an entry for each part.
    CheckpointError for one of another shape.
    """
    scan = _scan(spec)
    found: dict[str, TensorEntry] = {}
    for name, entry in tensors.items():
        match = _HELD.fullmatch(name) if scan is not None else None
        if match is None or scan is None:
            found[name] = entry
        elif match["rest"] in ("A_log", "D", "norm.weight"):  # files may have a dimension more than vectors
            found[name] = replace(entry, shape=(math.prod(entry.shape),))
        else:
            found |= _parts(name, entry, scan)
    return found


def _parts(name: str, entry: TensorEntry, scan: ScanSpec) -> dict[str, TensorEntry]:
    stem, _, kind = name.rpartition(".")
    convolves, sizes = stem.endswith("conv1d"), scan.dimensions()
    rows = [(part, sizes[_IN[part]]) for part in (_CONVOLVED if convolves else _IN)]
    total, each = sum(count for _, count in rows), scan.taps + 1 if convolves and kind == "weight" else 1
    good = {(total,)} if kind == "bias" else {(total, each), (total, 1, each)} if convolves else set()
    if entry.shape not in good and (good or len(entry.shape) != 2 or entry.shape[0] != total):
        wanted = f"{total} rows, of {', '.join(part for part, _ in rows)}" + (
            f", {each} weights each" if each > 1 else ""
        )
        raise damaged(entry.file, f"shape of {name}", seen=list(entry.shape), wanted=wanted)
    if convolves:
        entry = replace(entry, shape=(total * each,))
    ends = [0]
    for _, count in rows:
        ends.append(ends[-1] + count)
    names = [f"{stem}.{part}.{kind}" for part, _ in rows]
    return {
        own: rows_of(entry, own, first * each, (past - first) * each)
        for own, (first, past) in zip(names, pairwise(ends), strict=True)
    }


def convert_folder(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """The same of a folder, which has decays as logarithms."""
    found = split_tensors(tensors, spec)
    for name, entry in found.items():
        if name.endswith(".A_log"):
            found[name] = replace(entry, function="negative_exponential")
    return found


def mixed(
    ops: Ops,
    model: ForwardContext,
    index: int,
    h: Tensor,
    gate_scale: float = 1.0,
    step_scale: float = 1.0,
    precision: Precision = "usual",
) -> Tensor:
    """Return what the recurrence of layer `index` of this stage makes of the normed rows h, gated and normed, to be
    projected with `scan_o`; of the model's last layer the selected rows only. The scales are of z and dt.
    """
    layer, scan, part = model.parameters.layers[index], _scan(model.spec), model.part
    assert scan is not None  # a layer has these parameters only where the figures say so
    heads, groups = part.state_groups, scan.groups_in(part)
    inner, state = heads.count * scan.head_dim, model.state_layers[part.layers.first + index]
    biases = [layer.get(f"scan_{each}_bias") for each in _IN]
    projected = ops.linear(h, [layer[f"scan_{each}"] for each in _IN], biases, precision=precision)
    z, xbc, dt = ops.split(projected, (inner, inner + 2 * groups.count * scan.state_width, heads.count))
    if step_scale != 1.0:
        dt = ops.scale(dt, step_scale)
    weights = [layer[f"conv_{each}"] for each in _CONVOLVED]
    shifts = [layer[f"conv_{each}_bias"] for each in _CONVOLVED] if scan.convolution_bias else ()
    xbc = ops.short_convolution(xbc, weights, shifts, model.state, state, True)
    how = ScanHeads(scan.per_group, heads.first - groups.first * scan.per_group)
    vectors = (layer["decay_weight"], layer["decay_bias"], layer["skip"])
    y = ops.selective_scan(xbc, dt, *vectors, model.state, state, how)
    y, z = (stage.select_last(ops, model, index, each) for each in (y, z))
    if gate_scale != 1.0:
        z = ops.scale(z, gate_scale)
    if scan.gating == "norm_first":
        return ops.silu_mul(z, _normed(ops, model, scan, layer["scan_norm"], y))
    gated = ops.silu_mul(z, y)
    return gated if scan.gating == "no_norm" else _normed(ops, model, scan, layer["scan_norm"], gated)


def _normed(ops: Ops, model: ForwardContext, scan: ScanSpec, weight: Tensor, x: Tensor) -> Tensor:
    """x through a norm over each group. Where a norm is over what several ranks have, all of it comes together
    first.
    """
    part, eps = model.part, model.spec.norm_eps
    heads = part.state_groups
    if not scan.norm_is_apart(part):
        return ops.rms_norm_grouped(x, weight, heads.count // scan.per_group, eps)
    whole = ops.gather(x, [count * scan.head_dim for count in part.state_counts])
    return stage.columns_of(
        ops, ops.rms_norm_grouped(whole, weight, scan.groups, eps), heads, scan.heads, scan.head_dim
    )


forward = forward_with(mixer=mixed, mixer_out="scan_o")  # of layers with attention or a recurrence, then an MLP
