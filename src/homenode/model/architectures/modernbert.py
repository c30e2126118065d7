"""ModernBERT: an encoder of which two layers in three see a window only, both ways, with norms before each half of a
layer, gated MLPs, and a rope for each kind of layer. Its first layer has no norm before attention.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import attention, encoder, stage, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat, renamed
from homenode.model.architectures.layer_kinds import all_but_first_of_each
from homenode.model.architectures.layer_norm_decoder import normed
from homenode.model.architectures.parameters import ForwardContext, of_layer
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.pooling import HeadLayer, PoolingSpec
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=8192, heads=12, vocab=50368, norm_eps=1e-5, intermediate=1152, theta=160000.0, local_theta=10000.0,
    activation=None,
)  # fmt: skip
PATTERN = 3  # each layer of that number, from the first on, sees its whole text, the others a window
_SPELLED = {"norm_eps": "layer_norm_eps", "global_rope_theta": "rope_theta", "local_rope_theta": "rope_local_base_freq"}
_WANTED = {"hidden_activation": "gelu", "attention_bias": False, "mlp_bias": False, "norm_bias": False}
_MODULES = renamed(
    "layers.{layer}.",
    "attn_norm=input_layernorm attn.Wqkv=self_attn.qkv_proj attn.Wo=self_attn.o_proj "
    "mlp_norm=post_attention_layernorm mlp.Wi=mlp.gate_up_proj mlp.Wo=mlp.down_proj",
    "embeddings.tok_embeddings=model.embed_tokens embeddings.norm=model.embed_norm final_norm=model.norm",
)


PARAMETERS = (
    encoder.EMBEDDING,
    encoder.EMBEDDING_NORM[0],
    tables.EMBEDDING_AND_HEAD[1],
    tables.layer_weight(
        "input_norm", "input_layernorm", "attn_norm", "hidden", when=of_layer(lambda spec, layer: layer > 0)
    ),
    *tables.PROJECTIONS,
    *tables.GATED_MLP,
)


def _read_folder(config: FolderConfig) -> ModelSpec:
    fields = config.fields
    fields.refuse_others(_WANTED)
    spec = encoder.folder_figures(config.respelled(_SPELLED), DEFAULTS)
    every = fields.integer("global_attn_every_n_layers", PATTERN, maximum=limits.MOST_LAYERS)
    local = fields.integer("local_attention", 128, minimum=2, maximum=limits.MOST_POSITION)
    half = fields.optional_integer("sliding_window", maximum=limits.MOST_POSITION) or local // 2  # of the window
    spec = config.with_window_in(spec, half + 1, lambda layers: all_but_first_of_each(layers, every))
    if not (labels := config.labels()):
        return spec
    rows = fields.text("classifier_pooling", "cls")
    head = (
        HeadLayer("head.dense.weight", "", "gelu_erf", "head.norm.weight", spec.norm_eps),
        HeadLayer("classifier.weight", "classifier.bias"),
    )
    return replace(spec, pooling=PoolingSpec("mean" if rows == "mean" else "cls", len(labels), head, labels))


def _read_gguf(config: GgufConfig) -> ModelSpec:
    fields = config.fields
    fields.refuse_others({"hidden_act": "gelu"})
    spec = encoder.gguf_figures(config)
    local = config.window()
    if local is None:
        return spec
    every = fields.integer("attention.sliding_window_pattern", PATTERN, maximum=limits.MOST_LAYERS)
    return replace(
        spec,
        sliding_window=local // 2 + 1,
        sliding_layers=all_but_first_of_each(spec.num_layers, every),
        local_rope=config.local_rope(10000.0),
    )


def _forward(ops: Ops, model: ForwardContext) -> Tensor:
    x = encoder.enter(ops, model)
    rotation = attention.rotation_by_layer(ops, model)
    for index, layer in enumerate(model.parameters.layers):
        h = normed(ops, model, layer, "input_norm", x) if "input_norm" in layer else x
        inner = attention.attended(ops, model, index, attention.project_qkv(ops, model, index, h), rotation(index))
        inner, x = (stage.select_last(ops, model, index, rows) for rows in (inner, x))
        x = stage.project_out(ops, model, inner, layer["o"], None, x)
        h = normed(ops, model, layer, "post_norm", x)
        inner = ops.gelu_mul(ops.linear(h, (layer["gate"], layer["up"])), form="gelu_erf")
        x = stage.project_out(ops, model, inner, layer["down"], None, x)
    return normed(ops, model, model.parameters.top, "norm", x) if model.part.last_stage else x


ARCHITECTURE = Architecture(
    "modernbert",
    FolderFormat(
        "ModernBertModel",
        _read_folder,
        fields=frozenset((*encoder.EPS, *_SPELLED, *_WANTED)).union(
            "global_attn_every_n_layers local_attention sliding_window rope_local_base_freq classifier_pooling "
            "id2label".split()
        ),
        harmless=encoder.HARMLESS
        | dict.fromkeys(
            "embedding_dropout mlp_dropout initializer_cutoff_factor deterministic_flash_attn reference_compile "
            "repad_logits_with_grad sparse_prediction sparse_pred_ignore_index".split(),
            "of training, or how transformers computes",
        )
        | dict.fromkeys("decoder_bias classifier_bias classifier_activation".split(), "of heads"),
        older_classes=("ModernBertForMaskedLM", "ModernBertForSequenceClassification"),
        modules=encoder.with_fronts(_MODULES, "model"),
        convert=encoder.split_tensors,
    ),
    GgufFormat(
        "modern-bert",
        _read_gguf,
        keys=encoder.GGUF_KEYS | {"rope.freq_base_swa", "hidden_act", "attention.sliding_window_pattern"},
        names={"blk.{layer}.ffn_up.weight": "model.layers.{layer}.mlp.gate_up_proj.weight"},
        convert=encoder.split_tensors,
    ),
    PARAMETERS,
    _forward,
)
