"""LFM2: layers with a short convolution between two gates or with attention, each followed by a gated MLP."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import stage, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.parameters import ForwardContext, Parameter
from homenode.model.architectures.pre_norm import forward_with
from homenode.model.architectures.tables import layer_bias, layer_weight
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.formats.bounded_files import damaged
from homenode.model.formats.tensor_parts import rows_of
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec, TensorEntry, Tensors
from homenode.model.state_mixers import ConvolutionSpec, attends, has_mixer, with_mixer

DEFAULTS = Defaults(
    max_position=128_000, heads=32, kv_heads=8, vocab=65536, bos_id=1, eos_id=2, norm_eps=1e-5, theta=1e6,
    intermediate=12288, activation=None,
)  # fmt: skip
SPELLED = {"norm_eps": "rms_norm_eps", "tie_embedding": "tie_word_embeddings"}
FIELDS = frozenset((*SPELLED, "conv_L_cache", "conv_bias"))
HARMLESS = dict.fromkeys(
    "block_dim block_mlp_init_scale block_norm_eps block_out_init_scale block_use_swiglu block_use_xavier_init "
    "conv_dim conv_dim_out conv_use_xavier_init num_heads theta use_pos_enc".split(),
    "its class does not read it",
)
KEYS = frozenset(("shortconv.l_cache",))
NAMES = {
    "output_norm.weight": "model.embedding_norm.weight",  # what newer files call it
    "blk.{layer}.shortconv.in_proj.weight": "model.layers.{layer}.conv.in_proj.weight",
    "blk.{layer}.shortconv.in_proj.bias": "model.layers.{layer}.conv.in_proj.bias",
}
_GATES = ("b", "c", "x")  # the parts of what projects to the convolution, in their order there


def _has_biases(spec: ModelSpec, part: ModelPart, layer: int | None) -> bool:
    return has_mixer(spec, part, layer) and isinstance(spec.mixer, ConvolutionSpec) and spec.mixer.bias


def _attention(key: str, name: str, gguf: str, *shape: str) -> Parameter:
    return layer_weight(key, f"self_attn.{name}", gguf, *shape, when=attends)


MIXERS = (
    *tables.EMBEDDING_AND_HEAD[::2],
    Parameter("norm", "model.embedding_norm.weight", ("hidden",), "token_embd_norm.weight", tables.has_output),
    layer_weight("input_norm", "operator_norm", "attn_norm", "hidden"),
    *(replace(each, when=attends) for each in tables.PROJECTIONS[:3]),
    _attention("o", "out_proj", "attn_output", "hidden", "query"),
    _attention("q_norm", "q_layernorm", "attn_q_norm", "head"),
    _attention("k_norm", "k_layernorm", "attn_k_norm", "head"),
    *(
        layer_weight(
            f"conv_{part}", f"conv.in_proj.{part}", f"shortconv.in_proj.{part}", "channels", "hidden", when=has_mixer
        )
        for part in _GATES
    ),
    *(
        layer_bias(f"conv_{part}_bias", f"conv.in_proj.{part}", f"shortconv.in_proj.{part}", "channels", _has_biases)
        for part in _GATES
    ),
    layer_weight("conv_taps", "conv.conv", "shortconv.conv", "channel_taps", when=has_mixer),
    layer_bias("conv_taps_bias", "conv.conv", "shortconv.conv", "channels", _has_biases),
    layer_weight("conv_o", "conv.out_proj", "shortconv.out_proj", "hidden", "channels", when=has_mixer),
    layer_bias("conv_o_bias", "conv.out_proj", "shortconv.out_proj", "hidden", _has_biases),
    layer_weight("post_norm", "ffn_norm", "ffn_norm", "hidden"),
    *tables.gated_matrices("", "feed_forward", "", "intermediate", tables.has_mlp, tables.W1_W3_W2),
)


def read_mixers(config: FolderConfig, spec: ModelSpec, kinds: tuple[str, ...]) -> ModelSpec:
    """The figures with those of layers that have a convolution. `kinds`: of each layer what it has."""
    fields = config.fields
    mixer = ConvolutionSpec(
        tuple(layer for layer, kind in enumerate(kinds) if kind == "conv"),
        spec.hidden_size,
        fields.integer("conv_L_cache", 3, minimum=2, maximum=64) - 1,
        fields.boolean("conv_bias", False),
    )
    if len(kinds) != spec.num_layers or not set(kinds) <= {"conv", "full_attention"}:
        raise fields.wrong("layer_types", list(kinds), f"{spec.num_layers} values, each conv or full_attention")
    return with_mixer(spec, mixer, [layer for layer, kind in enumerate(kinds) if kind != "conv"])


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = config.respelled(SPELLED | {"block_ff_dim": "intermediate_size"})
    fields, spec = config.fields, config.decoder(DEFAULTS)
    inner = spec.intermediate_size
    if fields.boolean("block_auto_adjust_ff_dim", True):
        inner = int(2 * inner / 3)
        if not fields.is_null("block_ffn_dim_multiplier"):
            inner = int(fields.number("block_ffn_dim_multiplier", 1.0, most=1e3) * inner)
        multiple = fields.integer("block_multiple_of", 256, maximum=limits.MOST_INTERMEDIATE)
        inner = -(-inner // multiple) * multiple
    attending = set(fields.integers("full_attn_idxs") or range(spec.num_layers))
    kinds = tuple("full_attention" if layer in attending else "conv" for layer in range(spec.num_layers))
    return read_mixers(config, replace(spec, intermediate_size=inner), fields.texts("layer_types") or kinds)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file: layers without KV heads have a convolution."""
    spec = config.decoder(theta=DEFAULTS.theta, layers_differ=True)
    heads = config.per_layer("attention.head_count_kv", spec.num_kv_heads, minimum=0)
    layers = tuple(layer for layer, count in enumerate(heads) if not count)
    biased = any(f"model.layers.{layer}.conv.conv.bias" in config.tensors for layer in layers)
    taps = config.fields.integer("shortconv.l_cache", minimum=2, maximum=64) - 1
    mixer = ConvolutionSpec(layers, spec.hidden_size, taps, biased)
    return with_mixer(spec, mixer, [layer for layer, count in enumerate(heads) if count])


def convert(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors of a model, what projects to a convolution as an entry for each part. CheckpointError for one of
    another shape.
    """
    found: dict[str, TensorEntry] = {}
    for name, entry in tensors.items():
        stem, _, kind = name.rpartition(".")
        if stem.endswith(".conv.conv") and kind == "weight" and len(entry.shape) in (2, 3):
            found[name] = replace(entry, shape=(entry.shape[0] * entry.shape[-1],))
        elif stem.endswith(".conv.in_proj"):
            if not entry.shape or entry.shape[0] != 3 * spec.hidden_size:
                wanted = f"{3 * spec.hidden_size} rows, of two gates and what is convolved"
                raise damaged(entry.file, f"shape of {name}", seen=list(entry.shape), wanted=wanted)
            ends = range(0, 4 * spec.hidden_size, spec.hidden_size)
            for part, (first, past) in zip(_GATES, pairwise(ends), strict=True):
                own = f"{stem}.{part}.{kind}"
                found[own] = rows_of(entry, own, first, past - first)
        else:
            found[name] = entry
    return found


def convolved(ops: Ops, model: ForwardContext, index: int, h: Tensor) -> Tensor:
    """C times the convolution of B times X, all three of them projections of the normed rows h; of the model's last
    layer the selected rows only.
    """
    layer, channels = model.parameters.layers[index], model.part.state_groups.count
    weights, biases = ([layer.get(f"conv_{part}{kind}") for part in _GATES] for kind in ("", "_bias"))
    b, c, x = ops.split(ops.linear(h, weights, biases), (channels,) * 3)
    state = model.state_layers[model.part.layers.first + index]
    bias = (layer["conv_taps_bias"],) if "conv_taps_bias" in layer else ()
    found = ops.short_convolution(ops.multiply(b, x), (layer["conv_taps"],), bias, model.state, state, False)
    c, found = (stage.select_last(ops, model, index, each) for each in (c, found))
    return ops.multiply(c, found)


forward = forward_with(mixer=convolved, mixer_out="conv_o")
ARCHITECTURE = Architecture(
    "lfm2",
    FolderFormat(
        "Lfm2ForCausalLM",
        _read_folder,
        fields=FIELDS
        | frozenset(
            "block_ff_dim block_auto_adjust_ff_dim block_ffn_dim_multiplier block_multiple_of full_attn_idxs".split()
        ),
        harmless=HARMLESS,
        convert=convert,
    ),
    GgufFormat("lfm2", read_gguf, keys=KEYS, names=NAMES, convert=convert),
    MIXERS,
    forward,
)
