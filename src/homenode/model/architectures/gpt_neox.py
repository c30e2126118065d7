"""GPT-NeoX and Pythia: attention and MLP beside each other, each behind a LayerNorm of its own, or one after the other;
rope over a part of each head.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_norm_decoder import (
    PARAMETERS,
    BlockStyle,
    forward,
    gguf_figures,
    split_grouped_rows,
)
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.formats.fields import Fields
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=2048, heads=64, vocab=50432, bos_id=0, eos_id=2, norm_eps=1e-5, intermediate=24576, rotary_share=0.25,
    activation=None, attention_bias=True,
)  # fmt: skip
_LAYER, _THEIRS = "model.layers.{layer}.", "gpt_neox.layers.{layer}."


def _style(fields: Fields) -> BlockStyle:
    parallel = fields.boolean("use_parallel_residual", True)
    return BlockStyle("gelu_erf", "parallel" if parallel else "serial")


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = config.respelled(
        {"layer_norm_eps": "rms_norm_eps", "rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"}
    )
    style = replace(_style(config.fields), activation=config.plain_activation("hidden_act", "gelu"))
    spec = config.uniform_decoder(DEFAULTS, rotates_part=True)
    return replace(spec, num_kv_heads=spec.num_heads, mlp_bias=True, own=style)


ARCHITECTURE = Architecture(
    "gpt_neox",
    FolderFormat(
        "GPTNeoXForCausalLM",
        _read_folder,
        fields=DEFAULTS.fields
        | frozenset("hidden_act layer_norm_eps use_parallel_residual rotary_pct rotary_emb_base".split()),
        modules={
            "gpt_neox.embed_in": "model.embed_tokens",
            "gpt_neox.final_layer_norm": "model.norm",
            "embed_out": "lm_head",
            **{_THEIRS + norm: _LAYER + norm for norm in ("input_layernorm", "post_attention_layernorm")},
            _THEIRS + "attention.query_key_value": _LAYER + "self_attn.grouped_qkv",
            _THEIRS + "attention.dense": _LAYER + "self_attn.o_proj",
            _THEIRS + "mlp.dense_h_to_4h": _LAYER + "mlp.up_proj",
            _THEIRS + "mlp.dense_4h_to_h": _LAYER + "mlp.down_proj",
        },
        convert=split_grouped_rows,
    ),
    GgufFormat(
        "gptneox",
        lambda config: gguf_figures(config, _style(config.fields)),
        keys=frozenset(("use_parallel_residual",)),
    ),
    PARAMETERS,
    forward,
)
