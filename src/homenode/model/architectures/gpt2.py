"""GPT-2: a table of positions, LayerNorm, biases everywhere, and an MLP of gelu without a gate. Folders hold matrices
with columns for rows.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures.architecture import FolderFormat, GgufFormat, renamed
from homenode.model.architectures.layer_norm_decoder import BlockStyle, folder_figures, gguf_figures, layer_norm_family
from homenode.model.config.folder_config import HEAD_FIELDS, ROPE, Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats.fused_rows import split_fused_rows
from homenode.model.formats.tensor_parts import transposed
from homenode.model.spec import ModelSpec, TensorEntry, Tensors

DEFAULTS = Defaults(
    max_position=1024, heads=12, vocab=50257, bos_id=50256, eos_id=50256, norm_eps=1e-5, intermediate=3072,
    activation=None,
)  # fmt: skip
STYLE = BlockStyle("gelu", positions="table")
ACTIVATION = ("activation_function", "gelu_new")
_TURNED = "turned."
_SPELLED = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "rms_norm_eps",
}
FIELDS = frozenset((*_SPELLED, "n_inner", "activation_function"))
HARMLESS = {
    "n_ctx": "n_positions tells it",
    **dict.fromkeys(
        "summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout".split(),
        "of models that classify",
    ),
}


def respelled(config: FolderConfig) -> FolderConfig:
    """A config.json of GPT-2 or one of its kin by the names of others, without fields that their classes lack."""
    return config.respelled(_SPELLED).without(*ROPE, *HEAD_FIELDS)


def _read_folder(config: FolderConfig) -> ModelSpec:
    config.fields.refuse_others({"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False})
    return folder_figures(respelled(config), DEFAULTS, STYLE, ACTIVATION, bias=True, inner="n_inner")


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file. No context is longer than the table of positions."""
    spec, table = gguf_figures(config, STYLE), config.tensors.get("model.positions.weight")
    rows = table.shape[0] if table is not None and table.shape else spec.max_position
    return replace(spec, dimensions={"positions": rows}, max_position=min(spec.max_position, rows))


def module_names(qkv: str, front: str = "") -> dict[str, str]:
    """Return what the class calls its modules. `qkv`: what is made of the matrix of queries, keys and values; `front`:
    stands before the names of a layer's matrices.
    """
    return renamed(
        "h.{layer}.",
        f"ln_1=input_layernorm ln_2=post_attention_layernorm attn.c_attn={front}self_attn.{qkv} "
        f"attn.c_proj={front}self_attn.o_proj mlp.c_fc={front}mlp.up_proj mlp.c_proj={front}mlp.down_proj",
        "wte=model.embed_tokens wpe=model.positions ln_f=model.norm",
    )


def _turned(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """A folder's matrices, turned, and q, k and v of them each by itself."""
    found = {}
    for name, entry in tensors.items():
        own = name.replace(_TURNED, "")
        turns = own != name and len(entry.shape) == 2
        found[own] = transposed(entry, own) if turns else replace(entry, name=own)
    return split_fused_rows(found, spec)


ARCHITECTURE = layer_norm_family(
    "gpt2",
    FolderFormat(
        "GPT2LMHeadModel",
        _read_folder,
        fields=FIELDS | {"scale_attn_weights", "scale_attn_by_inverse_layer_idx"},
        harmless=HARMLESS | {"reorder_and_upcast_attn": "how, not what, transformers computes"},
        modules=module_names("qkv_proj", _TURNED),
        convert=_turned,
    ),
    GgufFormat("gpt2", read_gguf),
)
