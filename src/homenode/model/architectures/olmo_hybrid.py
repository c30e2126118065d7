"""OLMo Hybrid: three of four layers have a gated delta rule between norms as Llama has them, whose state may turn what
it has of a key to its opposite; the others are OLMo 2's, mostly without a rope.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import delta_net, olmo2, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, renamed
from homenode.model.architectures.layer_kinds import INTERVAL
from homenode.model.architectures.pre_norm import forward_with, project_normed_whole
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.formats import limits
from homenode.model.spec import DeltaSpec, ModelSpec, TensorEntry, Tensors

DEFAULTS = Defaults(max_position=65536, heads=30, vocab=100352, norm_eps=1e-6, eos_id=100257, intermediate=11008)
NORM_EPSILON = 1e-5  # of the norm behind the delta rule, whatever that of the others is
KINDS = ("linear_attention", "full_attention")
# What folders call the parts of a layer -> what the parameters of gated delta nets call them.
_MODULES = renamed(
    "model.layers.{layer}.",
    "attention_layer_norm=input_layernorm feedforward_layer_norm=post_attention_layernorm "
    "linear_attn.g_proj=linear_attn.in_proj_z linear_attn.o_norm=linear_attn.norm "
    "linear_attn.o_proj=linear_attn.out_proj linear_attn.[ab]_proj=linear_attn.in_proj_[ab] "
    "linear_attn.[qkv]_proj=linear_attn.[qkv] linear_attn.[qkv]_conv1d=linear_attn.conv_[qkv]",
)
PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    *(replace(each, when=delta_net.has_delta) for each in (tables.INPUT_NORM, *tables.POST_NORM)),
    *(replace(each, when=delta_net.attends) for each in (*tables.PROJECTIONS_NORMED_WHOLE, *tables.NORMS_BEHIND)),
    *delta_net.DELTA,
    *tables.GATE_UP_DOWN,
)


def _read_folder(config: FolderConfig) -> ModelSpec:
    fields = config.fields
    fields.refuse_others({"attention_bias": False})
    spec = config.decoder(DEFAULTS)
    layers, kinds = range(spec.num_layers), fields.texts("layer_types")
    if not kinds:
        full = {layer for layer in layers if (layer + 1) % INTERVAL == 0} or {spec.num_layers - 1}
        kinds = tuple(KINDS[layer in full] for layer in layers)
    if len(kinds) != len(layers) or set(kinds) != set(KINDS):
        raise fields.wrong("layer_types", kinds, f"{len(layers)} values, each {' or '.join(KINDS)}, and some of both")
    keys = fields.integer("linear_num_key_heads", spec.num_heads, maximum=limits.MOST_HEADS)
    width = max(3 * spec.hidden_size // (4 * keys), 1)
    width = fields.integer("linear_key_head_dim", width, maximum=limits.MOST_HEAD_DIM)
    delta = DeltaSpec(
        layers=tuple(layer for layer in layers if kinds[layer] == KINDS[0]),
        key_heads=keys,
        value_heads=fields.integer("linear_num_value_heads", spec.num_heads, maximum=limits.MOST_HEADS),
        key_width=width,
        value_width=fields.integer("linear_value_head_dim", 2 * width, maximum=limits.MOST_HEAD_DIM),
        taps=fields.integer("linear_conv_kernel_dim", 4, minimum=2, maximum=64) - 1,
        gain=2.0 if fields.boolean("linear_allow_neg_eigval", True) else 1.0,
        norm_epsilon=NORM_EPSILON,
    )
    if delta.value_heads % keys:
        raise fields.wrong("linear_num_value_heads", delta.value_heads, f"a multiple of {keys} key heads")
    has_rope = not (config.rope_table or fields).is_null("rope_theta")
    return delta_net.with_delta(replace(spec, rope_layers=() if has_rope else (False,) * spec.num_layers), delta)


def convert_folder(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors of a folder: convolutions have a weight for each token and channel, and decays are logarithms."""
    found = delta_net.split_tensors(tensors, spec)
    for name, entry in found.items():
        if ".linear_attn.conv_" in name and len(entry.shape) == 3:
            found[name] = replace(entry, shape=(entry.shape[0] * entry.shape[1] * entry.shape[2],))
        elif name.endswith("linear_attn.A_log"):
            found[name] = replace(entry, function="negative_exponential")
    return found


ARCHITECTURE = Architecture(
    "olmo_hybrid",
    FolderFormat(
        "OlmoHybridForCausalLM",
        _read_folder,
        fields=frozenset(
            "hidden_act attention_bias linear_num_key_heads linear_num_value_heads linear_key_head_dim "
            "linear_value_head_dim linear_conv_kernel_dim linear_allow_neg_eigval".split()
        ),
        harmless=dict.fromkeys(
            "linear_a_log_min linear_a_log_max linear_dt_min linear_dt_max linear_dt_init_floor".split(),
            "of the start of a training",
        ),
        modules=_MODULES,
        convert=convert_folder,
    ),
    olmo2.ARCHITECTURE.gguf.without_files(),
    PARAMETERS,
    forward_with(project_normed_whole, mixer=delta_net.delta_net, mixer_out="delta_o"),
)
