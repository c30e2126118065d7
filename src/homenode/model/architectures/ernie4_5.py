"""ERNIE 4.5 (dense): Llama's block, whose rope turns neighbours."""

from __future__ import annotations

from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import common, llama
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

NAME = "ernie4_5"
DEFAULTS = Defaults(
    max_position=131072, heads=16, kv_heads=2, head_dim=128, vocab=103424, bos_id=1, eos_id=2, norm_eps=1e-5, theta=5e5
)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    config.refuse_activation("hidden_act", "silu")
    config.refuse_other_layers(window=None)
    bias = config.fields.boolean("use_bias", False)
    return replace(config.decoder(NAME, DEFAULTS), attention_bias=bias, output_bias=bias, mlp_bias=bias)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    spec = config.decoder(NAME)
    config.refuse_window(spec)
    return spec


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """Logits of the step's selected rows, or the rows for the next stage."""
    x = common.enter(ops, model)
    rotation = common.angles(ops, model.rope)
    for index, layer in enumerate(model.parameters.layers):
        q, k, v = common.project_qkv(ops, model, layer, common.normed(ops, model, x, layer["input_norm"]))
        q, k = (common.rotated_neighbours(ops, model, each, rotation) for each in (q, k))
        x = common.attend(ops, model, index, x, (q, k, v), None)
        x = common.feed_forward(ops, model, index, x)
    return common.leave(ops, model, x)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat("Ernie4_5ForCausalLM", read_folder, fields=frozenset(("hidden_act", "use_bias"))),
    GgufFormat("ernie4_5", read_gguf),
    llama.PARAMETERS,
    forward,
)
