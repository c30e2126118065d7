"""OPT: a table of positions whose first two rows are none, LayerNorm, biases, and an MLP of relu without a gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from homenode.model.architectures import gpt2
from homenode.model.architectures.architecture import Architecture, FolderFormat
from homenode.model.architectures.layer_norm_decoder import PARAMETERS, BlockStyle, forward
from homenode.model.config.folder_config import HEAD_FIELDS, ROPE, Defaults, FolderConfig
from homenode.model.formats.tensor_parts import rows_of
from homenode.model.spec import ModelSpec, TensorEntry

EPSILON, OFFSET = 1e-5, 2
DEFAULTS = Defaults(
    max_position=2048, heads=12, vocab=50272, bos_id=2, eos_id=2, norm_eps=EPSILON, intermediate=3072, activation=None
)
STYLE = BlockStyle("relu", positions="table")
_LAYER, _THEIRS, _POSITIONS = "model.layers.{layer}.", "decoder.layers.{layer}.", "model.positions.weight"
# Of OPT 350M and of fine-tuned models of before 2022 alone.
_PLAIN = {"do_layer_norm_before": True, "_remove_final_layer_norm": False, "layer_norm_elementwise_affine": True}
_MODULES = {
    "decoder.embed_tokens": "model.embed_tokens",
    "decoder.embed_positions": "model.positions",
    "decoder.final_layer_norm": "model.norm",
    **{f"{_THEIRS}self_attn.{part}_proj": f"{_LAYER}self_attn.{part}_proj" for part in "qkv"},
    _THEIRS + "self_attn.out_proj": _LAYER + "self_attn.o_proj",
    _THEIRS + "self_attn_layer_norm": _LAYER + "input_layernorm",
    _THEIRS + "final_layer_norm": _LAYER + "post_attention_layernorm",
    _THEIRS + "fc1": _LAYER + "mlp.up_proj",
    _THEIRS + "fc2": _LAYER + "mlp.down_proj",
}


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = config.respelled({"ffn_dim": "intermediate_size"}).without("rms_norm_eps", *ROPE, *HEAD_FIELDS)
    fields = config.fields
    spec = config.uniform_decoder(DEFAULTS)
    fields.refuse_others({**_PLAIN, "word_embed_proj_dim": spec.hidden_size})
    bias = fields.boolean("enable_bias", True)
    return replace(
        spec,
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        dimensions={"positions": spec.max_position},
        own=replace(STYLE, activation=config.plain_activation("activation_function", "relu")),
    )


def _without_offset(tensors: Mapping[str, TensorEntry], spec: ModelSpec) -> dict[str, TensorEntry]:
    """A folder's tensors, of the table of positions the rows that are some."""
    found = dict(tensors)
    rows = spec.dimensions["positions"]
    if (table := found.get(_POSITIONS)) is not None and table.shape[:1] == (rows + OFFSET,):
        found[_POSITIONS] = rows_of(table, _POSITIONS, OFFSET, rows)
    return found


ARCHITECTURE = Architecture(
    "opt",
    FolderFormat(
        "OPTForCausalLM",
        _read_folder,
        fields=frozenset((*_PLAIN, "ffn_dim", "activation_function", "enable_bias", "word_embed_proj_dim")),
        harmless=dict.fromkeys(("layerdrop", "init_std", "activation_dropout"), "of training only"),
        modules={**_MODULES, **{f"model.{theirs}": ours for theirs, ours in _MODULES.items()}},
        convert=_without_offset,
    ),
    gpt2.ARCHITECTURE.gguf.without_files(),
    PARAMETERS,
    forward,
)
