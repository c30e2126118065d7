"""GPT-NeoX and Pythia: attention and MLP beside each other, each behind a LayerNorm of its own, or one after the other;
rope over a part of each head.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures.architecture import FolderFormat, GgufFormat, renamed
from homenode.model.architectures.conversions import split_grouped_rows
from homenode.model.architectures.layer_norm_decoder import BlockStyle, folder_figures, gguf_figures, layer_norm_family
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.formats.fields import Fields
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=2048, heads=64, vocab=50432, bos_id=0, eos_id=2, norm_eps=1e-5, intermediate=24576, rotary_share=0.25,
    activation=None, attention_bias=True,
)  # fmt: skip
_SPELLED = {"layer_norm_eps": "rms_norm_eps", "rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"}
MATRICES = "mlp.dense_h_to_4h=mlp.up_proj mlp.dense_4h_to_h=mlp.down_proj"  # what its kin call them as well


def _style(fields: Fields) -> BlockStyle:
    parallel = fields.boolean("use_parallel_residual", True)
    return BlockStyle("gelu_erf", "parallel" if parallel else "serial")


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = config.respelled(_SPELLED).without("num_key_value_heads")
    style = _style(config.fields)
    return replace(folder_figures(config, DEFAULTS, style, ("hidden_act", "gelu"), rotates_part=True), mlp_bias=True)


ARCHITECTURE = layer_norm_family(
    "gpt_neox",
    FolderFormat(
        "GPTNeoXForCausalLM",
        _read_folder,
        fields=DEFAULTS.fields | {*_SPELLED, "hidden_act", "use_parallel_residual"},
        modules=renamed(
            "gpt_neox.layers.{layer}.",
            "input_layernorm post_attention_layernorm "
            f"attention.query_key_value=self_attn.grouped_qkv attention.dense=self_attn.o_proj {MATRICES}",
            "gpt_neox.embed_in=model.embed_tokens gpt_neox.final_layer_norm=model.norm embed_out=lm_head",
        ),
        convert=split_grouped_rows,
    ),
    GgufFormat(
        "gptneox",
        lambda config: gguf_figures(config, _style(config.fields)),
        keys=frozenset(("use_parallel_residual",)),
    ),
)
