"""OPT: a table of positions whose first two rows are none, LayerNorm, biases, and an MLP of relu without a gate."""

from __future__ import annotations

from homenode.model.architectures import gpt2
from homenode.model.architectures.architecture import renamed
from homenode.model.architectures.layer_norm_decoder import BlockStyle, folder_figures
from homenode.model.config.folder_config import HEAD_FIELDS, ROPE, Defaults, FolderConfig
from homenode.model.formats.tensor_parts import rows_of
from homenode.model.spec import ModelSpec, TensorEntry, Tensors

EPSILON, OFFSET = 1e-5, 2
DEFAULTS = Defaults(
    max_position=2048, heads=12, vocab=50272, bos_id=2, eos_id=2, norm_eps=EPSILON, intermediate=3072, activation=None
)
STYLE = BlockStyle("relu", positions="table")
_POSITIONS = "model.positions.weight"
# Of OPT 350M and of fine-tuned models of before 2022 alone.
_PLAIN = {"do_layer_norm_before": True, "_remove_final_layer_norm": False, "layer_norm_elementwise_affine": True}
_MODULES = renamed(
    "decoder.layers.{layer}.",
    "self_attn.[qkv]_proj self_attn.out_proj=self_attn.o_proj self_attn_layer_norm=input_layernorm "
    "final_layer_norm=post_attention_layernorm fc1=mlp.up_proj fc2=mlp.down_proj",
    "decoder.embed_tokens=model.embed_tokens decoder.embed_positions=model.positions "
    "decoder.final_layer_norm=model.norm",
)


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = config.respelled({"ffn_dim": "intermediate_size"}).without("rms_norm_eps", *ROPE, *HEAD_FIELDS)
    bias = config.fields.boolean("enable_bias", True)
    spec = folder_figures(config, DEFAULTS, STYLE, ("activation_function", "relu"), bias=bias)
    config.fields.refuse_others({**_PLAIN, "word_embed_proj_dim": spec.hidden_size})
    return spec


def _without_offset(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """A folder's tensors, of the table of positions the rows that are some."""
    found = dict(tensors)
    rows = spec.dimensions["positions"]
    if (table := found.get(_POSITIONS)) is not None and table.shape[:1] == (rows + OFFSET,):
        found[_POSITIONS] = rows_of(table, _POSITIONS, OFFSET, rows)
    return found


ARCHITECTURE = gpt2.ARCHITECTURE.of_class(
    "opt",
    "OPTForCausalLM",
    read=_read_folder,
    fields=frozenset((*_PLAIN, "ffn_dim", "activation_function", "enable_bias", "word_embed_proj_dim")),
    harmless=dict.fromkeys(("layerdrop", "init_std", "activation_dropout"), "of training only"),
    modules=_MODULES | {f"model.{theirs}": ours for theirs, ours in _MODULES.items()},
    convert=_without_offset,
)
