"""EXAONE 3 and 3.5: Llama's block under other names."""

from __future__ import annotations

from homenode.model.architectures import llama
from homenode.model.architectures.architecture import GgufFormat, renamed
from homenode.model.config.folder_config import Defaults
from homenode.model.config.gguf_config import GgufConfig

DEFAULTS = Defaults(
    max_position=4096, heads=32, kv_heads=8, vocab=102400, bos_id=1, eos_id=361, norm_eps=1e-5, theta=5e5,
    intermediate=14336, attention_bias=False, mlp_bias=False,
)  # fmt: skip
FIELDS = {"num_layers": "num_hidden_layers", "layer_norm_epsilon": "rms_norm_eps", "activation_function": "hidden_act"}

ARCHITECTURE = llama.ARCHITECTURE.of_class(
    "exaone",
    "ExaoneForCausalLM",
    read=lambda config: config.respelled(FIELDS).uniform_decoder(DEFAULTS),
    fields=DEFAULTS.fields | FIELDS.keys(),
    modules=renamed(
        "h.{layer}.",
        "ln_1=input_layernorm ln_2=post_attention_layernorm attn.attention.[qkv]_proj=self_attn.[qkv]_proj "
        "attn.attention.out_proj=self_attn.o_proj mlp.c_fc_0=mlp.gate_proj mlp.c_fc_1=mlp.up_proj "
        "mlp.c_proj=mlp.down_proj",
        "wte=model.embed_tokens ln_f=model.norm",
    ),
    gguf=GgufFormat("exaone", GgufConfig.uniform_decoder),
)
