"""Mamba 2 by itself: every layer is its recurrence behind a norm. There is no attention, and no MLP."""

from __future__ import annotations

from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import common, mamba_mixer
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.common import layer_weight
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.config.folder_config import ROPE, Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.spec import ModelSpec
from homenode.model.state_mixers import ScanSpec, with_mixer

NAME = "mamba2"
# There is no longest context: positions are numbers of tokens, nothing else.
DEFAULTS = Defaults(max_position=2**18, vocab=32768, head_dim=64, bos_id=0, eos_id=2, norm_eps=1e-5, intermediate=1)
SPELLED = {"layer_norm_epsilon": "rms_norm_eps", "num_heads": "num_attention_heads"}
PARAMETERS = (
    *common.EMBEDDING_AND_HEAD,
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
    config.refuse_activation("hidden_act", "silu")
    spec = config.decoder(NAME, DEFAULTS)
    bias = fields.boolean("use_bias", False)
    scan = ScanSpec(
        layers=tuple(range(spec.num_layers)),
        heads=spec.num_heads,
        head_dim=spec.head_dim,
        groups=fields.integer("n_groups", 8, maximum=limits.MOST_HEADS),
        state_width=fields.integer("state_size", 128, maximum=limits.MOST_HEAD_DIM),
        taps=fields.integer("conv_kernel", 4, minimum=2, maximum=64) - 1,
        convolution_bias=fields.boolean("use_conv_bias", True),
        input_bias=bias,
        output_bias=bias,
    )
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
    return with_mixer(replace(config, fields=fields).decoder(NAME, head_dim=scan.head_dim), scan, ())


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """Logits of the step's selected rows, or the rows for the next stage."""
    x = common.enter(ops, model)
    for index, layer in enumerate(model.parameters.layers):
        inner = mamba_mixer.mixed(ops, model, index, common.normed(ops, model, x, layer["input_norm"]))
        if model.part.adds_residual:
            x = common.select_last(ops, model, index, x)
        x = common.project_out(ops, model, inner, layer["scan_o"], layer.get("scan_o_bias"), x)
    return common.leave(ops, model, x)


ARCHITECTURE = Architecture(
    NAME,
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
    forward,
)
