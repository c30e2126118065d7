"""EXAONE 3 and 3.5: Llama's block under other names."""

from __future__ import annotations

from homenode.model.architectures import llama
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.pre_norm import forward
from homenode.model.config.folder_config import Defaults
from homenode.model.config.gguf_config import GgufConfig

DEFAULTS = Defaults(
    max_position=4096, heads=32, kv_heads=8, vocab=102400, bos_id=1, eos_id=361, norm_eps=1e-5, theta=5e5,
    intermediate=14336, attention_bias=False, mlp_bias=False,
)  # fmt: skip
FIELDS = {"num_layers": "num_hidden_layers", "layer_norm_epsilon": "rms_norm_eps", "activation_function": "hidden_act"}
_OLD, _NEW = "h.{layer}.", "model.layers.{layer}."
MODULES = {
    "wte": "model.embed_tokens",
    "ln_f": "model.norm",
    _OLD + "ln_1": _NEW + "input_layernorm",
    _OLD + "ln_2": _NEW + "post_attention_layernorm",
    _OLD + "attn.attention.out_proj": _NEW + "self_attn.o_proj",
    **{f"{_OLD}attn.attention.{name}_proj": f"{_NEW}self_attn.{name}_proj" for name in "qkv"},
    _OLD + "mlp.c_fc_0": _NEW + "mlp.gate_proj",
    _OLD + "mlp.c_fc_1": _NEW + "mlp.up_proj",
    _OLD + "mlp.c_proj": _NEW + "mlp.down_proj",
}


ARCHITECTURE = Architecture(
    "exaone",
    FolderFormat(
        "ExaoneForCausalLM",
        lambda config: config.respelled(FIELDS).uniform_decoder(DEFAULTS),
        fields=DEFAULTS.fields | FIELDS.keys(),
        modules=MODULES,
    ),
    GgufFormat("exaone", GgufConfig.uniform_decoder),
    llama.PARAMETERS,
    forward,
)
