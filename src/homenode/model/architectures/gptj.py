"""GPT-J: attention and MLP beside each other behind one LayerNorm, rope of neighbours over a part of each head, biases
in the MLP and the output matrix alone.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import gpt2
from homenode.model.architectures.architecture import Architecture, FolderFormat
from homenode.model.architectures.layer_norm_decoder import PARAMETERS, BlockStyle, forward
from homenode.model.config.folder_config import HEAD_FIELDS, ROPE, Defaults, FolderConfig
from homenode.model.formats import limits
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=2048, heads=16, vocab=50400, bos_id=50256, eos_id=50256, norm_eps=1e-5, intermediate=16384,
    activation=None,
)  # fmt: skip
STYLE = BlockStyle("gelu", "one_norm", positions="neighbours", head_bias=True)
_LAYER = "model.layers.{layer}."


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = config.respelled(gpt2.SPELLED).without(*ROPE, *HEAD_FIELDS)
    fields = config.fields
    spec = config.uniform_decoder(DEFAULTS)
    rotary = fields.integer("rotary_dim", 64, maximum=limits.MOST_HEAD_DIM)
    return replace(
        spec,
        num_kv_heads=spec.num_heads,
        intermediate_size=fields.integer("n_inner", 4 * spec.hidden_size, maximum=limits.MOST_INTERMEDIATE),
        mlp_bias=True,
        rope=replace(spec.rope, rotary_dim=rotary),
        own=replace(STYLE, activation=config.plain_activation("activation_function", "gelu_new")),
    )


ARCHITECTURE = Architecture(
    "gptj",
    FolderFormat(
        "GPTJForCausalLM",
        _read_folder,
        fields=frozenset((*gpt2.SPELLED, "n_inner", "activation_function", "rotary_dim")),
        harmless=gpt2.HARMLESS | dict.fromkeys(("rotary", "scale_attn_weights"), "its class does not read it"),
        modules={
            "wte": "model.embed_tokens",
            "ln_f": "model.norm",
            "h.{layer}.ln_1": _LAYER + "input_layernorm",
            **{f"h.{{layer}}.attn.{part}_proj": f"{_LAYER}self_attn.{part}_proj" for part in "qkv"},
            "h.{layer}.attn.out_proj": _LAYER + "self_attn.o_proj",
            "h.{layer}.mlp.fc_in": _LAYER + "mlp.up_proj",
            "h.{layer}.mlp.fc_out": _LAYER + "mlp.down_proj",
        },
    ),
    gpt2.ARCHITECTURE.gguf.without_files(),
    PARAMETERS,
    forward,
)
