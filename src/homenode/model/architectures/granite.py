"""Granite 3 (dense): Llama's block with four multipliers: of embeddings, of scores, of what each half of a layer adds,
and of logits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import common, llama
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

NAME = "granite"
DEFAULTS = Defaults(max_position=2048, bos_id=1, eos_id=2)


@dataclass(frozen=True)
class Multipliers:
    """`residual`: of what attention and MLP add to a row. `logits`: what logits are divided by. `norms_behind`: what they
    add has a norm.
    """

    residual: float
    logits: float
    norms_behind: bool = False


def read_multipliers(config: FolderConfig, spec: ModelSpec) -> ModelSpec:
    """`spec` with the multipliers in config.json."""
    fields = config.fields
    return replace(
        spec,
        embedding_scale=fields.number("embedding_multiplier", 1.0),
        attention_scale=fields.number("attention_multiplier", 1.0),
        own=Multipliers(fields.number("residual_multiplier", 1.0), fields.number("logits_scaling", 1.0, most=1e6)),
    )


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    return read_multipliers(config, llama.read_folder_as(config, NAME, DEFAULTS))


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    return read_gguf_as(config, NAME)


def read_gguf_as(config: GgufConfig, name: str) -> ModelSpec:
    """The figures in a GGUF file of an architecture with these multipliers and no window."""
    return with_multipliers(config, config.refuse_window(config.decoder(name, whole_heads=True, own_scale=True)))


def with_multipliers(config: GgufConfig, spec: ModelSpec) -> ModelSpec:
    """`spec` with the multipliers in a GGUF file. A scale of 0 means that there is none."""
    fields = config.fields
    # The reference reader takes this key as a switch of rope in these architectures.
    has_rope = fields.boolean("rope.scaling.finetuned", True)
    return replace(
        spec,
        rope_layers=() if has_rope else (False,) * spec.num_layers,
        embedding_scale=fields.number("embedding_scale", 1.0, least=0.0) or 1.0,
        attention_scale=fields.optional_number("attention.scale", least=0.0) or None,
        own=Multipliers(
            fields.number("residual_scale", 1.0, least=0.0) or 1.0,
            fields.number("logit_scale", 1.0, least=0.0, most=1e6) or 1.0,
        ),
    )


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """Logits of the step's selected rows, or the rows for the next stage. Layers have an MLP or experts."""
    own = model.spec.own
    assert isinstance(own, Multipliers)
    x = common.enter(ops, model)
    rotation = common.angles(ops, model.rope)
    for index, layer in enumerate(model.parameters.layers):
        qkv = common.project_qkv(ops, model, layer, common.normed(ops, model, x, layer["input_norm"]))
        inner = common.select_last(ops, model, index, common.attended(ops, model, index, qkv, rotation))
        out = common.project_out(ops, model, inner, layer["o"], layer.get("o_bias"), None)
        if own.norms_behind:
            out = common.normed(ops, model, out, layer["attended_norm"])
        x = ops.add(common.select_last(ops, model, index, x), ops.scale(out, own.residual))
        h = common.normed(ops, model, x, layer["post_norm"])
        if "router" in layer:
            out = common.mixture(ops, model, index, h, None)
        else:
            inner = common.gated(ops, layer, h)
            out = common.project_out(ops, model, inner, layer["down"], layer.get("down_bias"), None)
        if own.norms_behind:
            out = common.normed(ops, model, out, layer["mlp_norm"])
        x = ops.add(x, ops.scale(out, own.residual))
    return common.leave_scaled(ops, model, x, 1.0 / own.logits)


FIELDS = frozenset(
    "hidden_act attention_bias embedding_multiplier attention_multiplier residual_multiplier logits_scaling".split()
)
KEYS = frozenset(("embedding_scale", "residual_scale", "logit_scale"))
ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "GraniteForCausalLM",
        read_folder,
        fields=FIELDS | {"mlp_bias"},
    ),
    GgufFormat(
        "granite",
        read_gguf,
        keys=KEYS,
        convert=common.interleaved_heads,
    ),
    llama.PARAMETERS,
    forward,
)
