"""GPT-J: attention and MLP beside each other behind one LayerNorm, rope of neighbours over a part of each head, biases
in the MLP and the output matrix alone.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import gpt2
from homenode.model.architectures.architecture import as_stored, renamed
from homenode.model.architectures.layer_norm_decoder import BlockStyle, folder_figures
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.formats import limits
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=2048, heads=16, vocab=50400, bos_id=50256, eos_id=50256, norm_eps=1e-5, intermediate=16384,
    activation=None,
)  # fmt: skip
STYLE = BlockStyle("gelu", "one_norm", positions="neighbours", head_bias=True)
MODULES = (
    "ln_1=input_layernorm attn.out_proj=self_attn.o_proj mlp.fc_in=mlp.up_proj mlp.fc_out=mlp.down_proj",
    "wte=model.embed_tokens ln_f=model.norm",
)


def _read_folder(config: FolderConfig) -> ModelSpec:
    spec = folder_figures(gpt2.respelled(config), DEFAULTS, STYLE, gpt2.ACTIVATION, inner="n_inner")
    rotary = config.fields.integer("rotary_dim", 64, maximum=limits.MOST_HEAD_DIM)
    return replace(spec, mlp_bias=True, rope=replace(spec.rope, rotary_dim=rotary))


ARCHITECTURE = gpt2.ARCHITECTURE.of_class(
    "gptj",
    "GPTJForCausalLM",
    read=_read_folder,
    fields=gpt2.FIELDS | {"rotary_dim"},
    harmless=gpt2.HARMLESS | dict.fromkeys(("rotary", "scale_attn_weights"), "its class does not read it"),
    modules=renamed("h.{layer}.", "attn.[qkv]_proj=self_attn.[qkv]_proj", "") | renamed("h.{layer}.", *MODULES),
    convert=as_stored,
)
