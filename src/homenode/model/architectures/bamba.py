"""Bamba: layers with the recurrence of Mamba 2, or with attention that rotates half of each head, each followed by a
gated MLP. GGUF files of it say that they are of Granite 4's architecture.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import common, granitemoehybrid, mamba_mixer
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.falcon_h1 import BESIDE_MIXERS
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.spec import ModelSpec
from homenode.model.state_mixers import with_mixer

NAME = "bamba"
DEFAULTS = Defaults(
    max_position=262144,
    heads=32,
    kv_heads=8,
    vocab=128000,
    bos_id=1,
    eos_id=2,
    norm_eps=1e-5,
    intermediate=14336,
    rotary_share=0.5,
)
PARAMETERS = (*BESIDE_MIXERS, *mamba_mixer.ATTENTION, *mamba_mixer.parameters("mamba"))


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    config.refuse_activation("hidden_act", "silu")
    fields, spec = config.fields, config.decoder(NAME, DEFAULTS, rotates_part=True)
    attending = [layer for layer in fields.integers("attn_layer_indices") if layer < spec.num_layers]
    kinds = tuple("full_attention" if n in attending else "linear_attention" for n in range(spec.num_layers))
    if (seen := fields.texts("layer_types")) not in ((), kinds):
        raise fields.wrong("layer_types", list(seen), f"what attn_layer_indices says: {', '.join(kinds)}")
    bias = fields.boolean("attention_bias", False)
    spec = replace(spec, attention_bias=bias, output_bias=bias, mlp_bias=fields.boolean("mlp_bias", False))
    recurrent = [layer for layer in range(spec.num_layers) if layer not in attending]
    inner = mamba_mixer.expanded(fields, spec.hidden_size)
    return with_mixer(spec, mamba_mixer.read_folder(fields, recurrent, inner), attending)


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """Logits of the step's selected rows, or the rows for the next stage."""
    x = common.enter(ops, model)
    rotation = common.angles(ops, model.rope)
    for index, layer in enumerate(model.parameters.layers):
        h = common.normed(ops, model, x, layer["input_norm"])
        if "q" in layer:
            x = common.attend(ops, model, index, x, common.project_qkv(ops, model, layer, h), rotation)
        else:
            inner = mamba_mixer.mixed(ops, model, index, h)
            if model.part.adds_residual:
                x = common.select_last(ops, model, index, x)
            x = common.project_out(ops, model, inner, layer["scan_o"], layer.get("scan_o_bias"), x)
        x = common.gated_mlp(ops, model, layer, x)
    return common.leave(ops, model, x)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "BambaForCausalLM",
        read_folder,
        fields=mamba_mixer.FIELDS | {"hidden_act", "attention_bias", "mlp_bias", "attn_layer_indices"},
        harmless=mamba_mixer.HARMLESS
        | dict.fromkeys(
            "num_logits_to_keep z_loss_coefficient attn_rotary_emb".split(), "its class does not compute with it"
        ),
        convert=mamba_mixer.convert_folder,
    ),
    GgufFormat("granitehybrid", granitemoehybrid.read_gguf, keys=mamba_mixer.KEYS).without_files(NAME),
    PARAMETERS,
    forward,
)
