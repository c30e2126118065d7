"""Falcon-H1: each layer has the recurrence of Mamba 2 and attention side by side on one norm, then a gated MLP; numbers
of config.json multiply what goes into these and comes out. GGUF files have them in their weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import attention, mamba_mixer, mlp, stage, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.parameters import ForwardContext, Parameter
from homenode.model.architectures.stage import Layer
from homenode.model.architectures.tables import layer_weight
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.formats.fields import Fields
from homenode.model.spec import ModelSpec, TensorEntry, Tensors
from homenode.model.state_mixers import with_mixer

DEFAULTS = Defaults(
    max_position=8192, heads=32, kv_heads=8, vocab=128000, bos_id=1, eos_id=2, norm_eps=1e-5, intermediate=14336,
    attention_bias=False, mlp_bias=False,
)  # fmt: skip
BESIDE_MIXERS = (
    *tables.EMBEDDING_AND_HEAD[::2],
    Parameter("norm", "model.final_layernorm.weight", ("hidden",), "output_norm.weight", tables.has_output),
    tables.INPUT_NORM,
    layer_weight("post_norm", "pre_ff_layernorm", "ffn_norm", "hidden"),
    *(
        replace(each, name=each.name.replace("mlp", "feed_forward"))
        for each in (*tables.GATE_UP_DOWN, *tables.MLP_BIASES)
    ),
)
PARAMETERS = (*BESIDE_MIXERS, *mamba_mixer.ATTENTION, *mamba_mixer.parameters("mamba"))


@dataclass(frozen=True)
class FalconH1Multipliers:
    """Multipliers of what goes into attention, of what it and the recurrence add, of the parts z, x, B, C and dt of
    what goes into the recurrence, and of the gate and the output of the MLP.
    """

    attention_in: float = 1.0
    attention_out: float = 1.0
    scan_out: float = 1.0
    parts: tuple[float, ...] = (1.0,) * 5
    gate: float = 1.0
    down: float = 1.0
    scan_in: float = 1.0  # which `parts` have in them, and biases of the projection do not


def _several(fields: Fields, key: str, count: int) -> tuple[float, ...]:
    found = fields.numbers(key, above=-1e6) or (1.0,) * count
    if len(found) != count:
        raise fields.wrong(key, list(found), f"a list of {count} numbers")
    return found


def _read_folder(config: FolderConfig) -> ModelSpec:
    fields, spec = config.fields, config.decoder(DEFAULTS)
    mamba_mixer.refuse_other_layers(fields, "hybrid")
    entering = fields.number("ssm_in_multiplier", 1.0)
    gate, down = _several(fields, "mlp_multipliers", 2)
    multipliers = FalconH1Multipliers(
        attention_in=fields.number("attention_in_multiplier", 1.0),
        attention_out=fields.number("attention_out_multiplier", 1.0),
        scan_out=fields.number("ssm_out_multiplier", 1.0),
        scan_in=entering,
        parts=tuple(entering * each for each in _several(fields, "ssm_multipliers", 5)),
        gate=gate,
        down=down,
    )
    key = fields.number("key_multiplier", 1.0)
    spec = replace(
        spec,
        embedding_scale=fields.number("embedding_multiplier", 1.0),
        logits_scale=fields.number("lm_head_multiplier", 1.0),
        attention_scale=spec.head_dim**-0.5 * key,
        own=multipliers,
    )
    inner = mamba_mixer.expanded(fields, spec.hidden_size)
    if not fields.is_null("mamba_d_ssm"):
        inner = fields.integer("mamba_d_ssm", 1024, maximum=limits.MOST_INTERMEDIATE)
    before = fields.boolean("mamba_norm_before_gate", True)
    scan = replace(
        mamba_mixer.read_folder(fields, range(spec.num_layers), inner),
        gating=("norm_first" if before else "gate_first") if fields.boolean("mamba_rms_norm", False) else "no_norm",
        output_bias=fields.boolean("projectors_bias", False),
    )
    return with_mixer(spec, scan, range(spec.num_layers))


def _read_gguf(config: GgufConfig) -> ModelSpec:
    spec = replace(config.decoder(), own=FalconH1Multipliers())
    layers = range(spec.num_layers)
    return with_mixer(spec, mamba_mixer.read_gguf(config, layers, "mamba"), layers)


def _convert_folder(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors of a folder: what is convolved is multiplied before, which is the same as a multiple of weights."""
    own, found = spec.own_as(FalconH1Multipliers), mamba_mixer.convert_folder(tensors, spec)
    for name, entry in found.items():
        for part, times in zip(("x", "b", "c"), own.parts[1:4], strict=True):
            if name.endswith(f"conv1d.{part}.weight"):
                found[name] = replace(entry, times=times)
        if ".in_proj." in name and name.endswith(".bias"):
            found[name] = replace(entry, times=1 / own.scan_in)
    return found


def _forward(ops: Ops, model: ForwardContext) -> Tensor:
    own, x = model.spec.own_as(FalconH1Multipliers), stage.enter(ops, model)
    rotation = attention.angles(ops, model.rope)
    for index, layer in enumerate(model.parameters.layers):
        h = stage.normed(ops, model, x, layer["input_norm"])
        inner = mamba_mixer.mixed(ops, model, index, h, own.parts[0], own.parts[4])
        added = _scaled(ops, _projected(ops, model, inner, layer["scan_o"], layer.get("scan_o_bias")), own.scan_out)
        qkv = attention.project_qkv(ops, model, index, _scaled(ops, h, own.attention_in))
        inner = stage.select_last(ops, model, index, attention.attended(ops, model, index, qkv, rotation))
        out = _projected(ops, model, inner, layer["o"], layer.get("o_bias"))
        added = ops.add(added, _scaled(ops, out, own.attention_out))
        x = ops.add(stage.select_last(ops, model, index, x), stage.over_ranks(ops, model, added))
        h = stage.normed(ops, model, x, layer["post_norm"])
        inner = mlp.gated(ops, layer, h) if own.gate == 1.0 else _gated(ops, layer, h, own.gate)
        out = stage.project_out(ops, model, inner, layer["down"], layer.get("down_bias"), None)
        x = ops.add(x, _scaled(ops, out, own.down))
    return stage.leave(ops, model, x)


def _projected(ops: Ops, model: ForwardContext, inner: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product of the inner columns that are here; one rank brings in the bias."""
    return ops.linear(inner, (weight,), (bias if model.part.adds_residual else None,))


def _gated(ops: Ops, layer: Layer, h: Tensor, factor: float) -> Tensor:
    """The inner columns of the MLP, whose gate is multiplied before the activation."""
    gate, up = (ops.linear(h, (layer[each],), (layer.get(f"{each}_bias"),)) for each in ("gate", "up"))
    return ops.silu_mul(ops.scale(gate, factor), up)


def _scaled(ops: Ops, x: Tensor, factor: float) -> Tensor:
    return x if factor == 1.0 else ops.scale(x, factor)


ARCHITECTURE = Architecture(
    "falcon_h1",
    FolderFormat(
        "FalconH1ForCausalLM",
        _read_folder,
        fields=DEFAULTS.fields
        | mamba_mixer.FIELDS
        | frozenset(
            "projectors_bias embedding_multiplier lm_head_multiplier "
            "attention_in_multiplier attention_out_multiplier key_multiplier ssm_in_multiplier ssm_out_multiplier "
            "ssm_multipliers mlp_multipliers mamba_d_ssm mamba_rms_norm mamba_norm_before_gate".split()
        ),
        harmless=mamba_mixer.HARMLESS
        | dict.fromkeys(("num_logits_to_keep", "mamba_use_mlp"), "its class does not compute with it"),
        convert=_convert_folder,
    ),
    GgufFormat(
        "falcon-h1",
        _read_gguf,
        keys=mamba_mixer.KEYS,
        names=mamba_mixer.gguf_names("mamba")
        | {"blk.{layer}.ffn_norm": "model.layers.{layer}.pre_ff_layernorm.weight"},
        convert=mamba_mixer.split_tensors,
    ),
    PARAMETERS,
    _forward,
)
