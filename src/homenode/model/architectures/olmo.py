"""OLMo 1: Llama's block with a LayerNorm without parameters; values of q, k and v may be limited."""

from __future__ import annotations

from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import common
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_norm_decoder import EPS_KEY
from homenode.model.architectures.olmoe import ProjectionLimit, limited
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

NAME = "olmo"
EPSILON = 1e-5  # whatever a file says
DEFAULTS = Defaults(max_position=2048, heads=32, vocab=50304, eos_id=50279, norm_eps=EPSILON, intermediate=11008)
PARAMETERS = (
    *(each for each in common.EMBEDDING_AND_HEAD if each.key != "norm"),
    *common.PROJECTIONS,
    *common.QKV_BIASES,
    *common.OUTPUT_BIAS,
    *common.GATE_UP_DOWN,
)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    fields = config.fields
    config.refuse_activation("hidden_act", "silu")
    config.refuse_other_layers(window=None)
    bias = fields.boolean("attention_bias", False)
    spec = replace(config.decoder(NAME, DEFAULTS), attention_bias=bias, output_bias=bias, rms_norm_eps=EPSILON)
    return _limited(spec, fields.optional_number("clip_qkv"))


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    config = config.respelled(EPS_KEY)
    spec = config.refuse_window(config.decoder(NAME, whole_heads=True))
    return _limited(spec, config.fields.optional_number("attention.clamp_kqv", least=0.0))


def _limited(spec: ModelSpec, limit: float | None) -> ModelSpec:
    return replace(spec, own=ProjectionLimit(limit)) if limit else spec


def _normed(ops: Ops, model: ForwardContext, x: Tensor) -> Tensor:
    return ops.layer_norm(x, model.spec.hidden_size, None, model.spec.rms_norm_eps)


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """Logits of the step's selected rows, or the rows for the next stage."""
    x = common.enter(ops, model)
    rotation = common.angles(ops, model.rope)
    for index, layer in enumerate(model.parameters.layers):
        qkv = limited(ops, model, common.project_qkv(ops, model, layer, _normed(ops, model, x)))
        x = common.attend(ops, model, index, x, qkv, rotation)
        inner = common.gated(ops, layer, _normed(ops, model, x))
        x = common.project_out(ops, model, inner, layer["down"], None, x)
    return common.logits_of(ops, model, _normed(ops, model, x)) if model.part.last_stage else x


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat("OlmoForCausalLM", read_folder, fields=frozenset(("hidden_act", "attention_bias", "clip_qkv"))),
    GgufFormat("olmo", read_gguf, keys=frozenset(("attention.clamp_kqv",)), convert=common.interleaved_heads),
    PARAMETERS,
    forward,
)
