"""Phi 3 and 4: Llama's forward function, with a sliding window. Its files hold q, k and v in one matrix, and gate and
up in one.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import common
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.pre_norm import forward
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.config.known_fields import NOT_READ
from homenode.model.formats.fused_rows import split_fused_rows
from homenode.model.spec import ModelSpec

NAME = "phi3"
DEFAULTS = Defaults(max_position=4096, bos_id=1, eos_id=32000, norm_eps=1e-5, original_position=4096)
PARAMETERS = (*common.EMBEDDING_AND_HEAD, *common.ATTENTION, *common.GATED_MLP)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    config.refuse_activation("hidden_act", "silu")
    window = config.window(default=None)
    config.refuse_other_layers(window)
    return replace(config.decoder(NAME, DEFAULTS, rotates_part=True), sliding_window=window)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    return replace(config.decoder(NAME), sliding_window=config.window())


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "Phi3ForCausalLM",
        read_folder,
        fields=frozenset(("hidden_act", "sliding_window")),
        harmless=dict.fromkeys(("attention_bias", "use_sliding_window", "lm_head_bias"), NOT_READ),
        convert=split_fused_rows,
    ),
    GgufFormat(
        "phi3",
        read_gguf,
        names={
            f"blk.{{layer}}.{stored}.{kind}": f"model.layers.{{layer}}.{name}.{kind}"
            for stored, name in (("attn_qkv", "self_attn.qkv_proj"), ("ffn_up", "mlp.gate_up_proj"))
            for kind in ("weight", "bias")
        },
        convert=split_fused_rows,
    ),
    PARAMETERS,
    forward,
)
