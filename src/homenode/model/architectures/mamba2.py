"""Mamba 2 by itself: every layer is its recurrence behind a norm. There is no attention, and no MLP."""

from __future__ import annotations

from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import mamba_mixer, stage, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.architectures.tables import layer_weight
from homenode.model.config.folder_config import ROPE, Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.spec import ModelSpec
from homenode.model.state_mixers import with_mixer

# There is no longest context: positions are numbers of tokens, nothing else.
DEFAULTS = Defaults(max_position=2**18, vocab=32768, head_dim=64, bos_id=0, eos_id=2, norm_eps=1e-5, intermediate=1)
SPELLED = {"layer_norm_epsilon": "rms_norm_eps", "num_heads": "num_attention_heads"}
PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    layer_weight("input_norm", "norm", "attn_norm", "hidden"),
    *mamba_mixer.parameters("mixer"),
)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json. What other models have as heads of attention are those of the recurrence."""
    config = config.respelled(SPELLED).without(*ROPE, "is_causal", "num_key_value_heads")
    if not config.fields.has("num_attention_heads"):
        config = replace(config, fields=config.fields.with_value("num_attention_heads", 128))
    fields = config.fields
    mamba_mixer.refuse_step_limit(fields)
    mamba_mixer.refuse_other_layers(fields, "linear_attention")
    spec = config.decoder(DEFAULTS)
    width = fields.integer("state_size", 128, maximum=limits.MOST_HEAD_DIM)
    scan = mamba_mixer.read_plain_names(fields, range(spec.num_layers), spec.num_heads, spec.head_dim, width)
    inner = fields.integer("expand", 2, maximum=64) * spec.hidden_size
    if inner != scan.heads * scan.head_dim:
        raise fields.wrong("num_attention_heads", scan.heads, f"heads of {scan.head_dim} that make {inner}")
    return with_mixer(spec, mamba_mixer.check_heads(fields, "num_attention_heads", scan), ())


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file, which has 0 for whatever belongs to attention and MLP."""
    scan = mamba_mixer.read_gguf(config, range(config.layers), "mixer")
    fields = config.fields
    figures = {"attention.head_count": scan.heads, "attention.head_count_kv": scan.heads, "feed_forward_length": 1}
    for key, value in figures.items():
        fields = fields.with_value(key, value)
    return with_mixer(replace(config, fields=fields).decoder(head_dim=scan.head_dim), scan, ())


def _forward(ops: Ops, model: ForwardContext) -> Tensor:
    x = stage.enter(ops, model)
    for index, layer in enumerate(model.parameters.layers):
        inner = mamba_mixer.mixed(ops, model, index, stage.normed(ops, model, x, layer["input_norm"]))
        x = stage.add_mixed(ops, model, index, x, inner, "scan_o")
    return stage.leave(ops, model, x)


ARCHITECTURE = Architecture(
    "mamba2",
    FolderFormat(
        "Mamba2ForCausalLM",
        read_folder,
        fields=frozenset(
            "hidden_act expand n_groups state_size conv_kernel use_bias use_conv_bias time_step_limit".split()
        )
        | SPELLED.keys(),
        harmless=mamba_mixer.HARMLESS
        | dict.fromkeys(
            ("residual_in_fp32", "rescale_prenorm_residual", "time_step_rank"), "it changes nothing in float32"
        ),
        modules={
            **dict.fromkeys(
                ("backbone.embeddings", "backbone.embedding", "model.backbone.embeddings"), "model.embed_tokens"
            ),
            **dict.fromkeys(("backbone.norm_f", "model.backbone.norm_f"), "model.norm"),
            "model.lm_head": "lm_head",
            "model.backbone.": "model.",
            "backbone.": "model.",
        },
        convert=mamba_mixer.convert_folder,
    ),
    GgufFormat(
        "mamba2",
        read_gguf,
        keys=mamba_mixer.KEYS,
        names=mamba_mixer.gguf_names("mixer"),
        convert=mamba_mixer.split_tensors,
    ),
    PARAMETERS,
    _forward,
)
