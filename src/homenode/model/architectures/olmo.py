"""OLMo 1: Llama's block with a LayerNorm without parameters; values of q, k and v may be limited."""

from __future__ import annotations

from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import attention, llama, mlp, stage, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat
from homenode.model.architectures.layer_norm_decoder import EPS_KEY
from homenode.model.architectures.olmoe import ProjectionLimit, limited
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

EPSILON = 1e-5  # whatever a file says
DEFAULTS = Defaults(
    max_position=2048, heads=32, vocab=50304, eos_id=50279, norm_eps=EPSILON, intermediate=11008, attention_bias=False
)
PARAMETERS = (
    *(each for each in tables.EMBEDDING_AND_HEAD if each.key != "norm"),
    *tables.PROJECTIONS,
    *tables.QKV_BIASES,
    *tables.OUTPUT_BIAS,
    *tables.GATE_UP_DOWN,
)


def _read_folder(config: FolderConfig) -> ModelSpec:
    spec = replace(config.uniform_decoder(DEFAULTS), norm_eps=EPSILON)
    return _limited(spec, config.fields.optional_number("clip_qkv"))


def _read_gguf(config: GgufConfig) -> ModelSpec:
    spec = llama.read_gguf(config.respelled(EPS_KEY))
    return _limited(spec, config.fields.optional_number("attention.clamp_kqv", least=0.0))


def _limited(spec: ModelSpec, limit: float | None) -> ModelSpec:
    return replace(spec, own=ProjectionLimit(limit)) if limit else spec


def _normed(ops: Ops, model: ForwardContext, x: Tensor) -> Tensor:
    return ops.layer_norm(x, model.spec.hidden_size, None, model.spec.norm_eps)


def _forward(ops: Ops, model: ForwardContext) -> Tensor:
    x = stage.enter(ops, model)
    rotation = attention.angles(ops, model.rope)
    for index, layer in enumerate(model.parameters.layers):
        qkv = limited(ops, model, attention.project_qkv(ops, model, index, _normed(ops, model, x)))
        x = attention.attend(ops, model, index, x, qkv, rotation)
        inner = mlp.gated(ops, layer, _normed(ops, model, x))
        x = stage.project_out(ops, model, inner, layer["down"], None, x)
    return stage.logits_of(ops, model, _normed(ops, model, x)) if model.part.last_stage else x


ARCHITECTURE = Architecture(
    "olmo",
    FolderFormat("OlmoForCausalLM", _read_folder, fields=DEFAULTS.fields | {"clip_qkv"}),
    llama.gguf_format("olmo", _read_gguf, keys=frozenset(("attention.clamp_kqv",))),
    PARAMETERS,
    _forward,
)
