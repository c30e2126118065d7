"""Phi 3 and 4: Llama's forward function, with a sliding window. Its files hold q, k and v in one matrix, and gate and
up in one.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.pre_norm import forward
from homenode.model.config.folder_config import Defaults
from homenode.model.config.known_fields import NOT_READ
from homenode.model.formats.fused_rows import split_fused_rows

DEFAULTS = Defaults(max_position=4096, bos_id=1, eos_id=32000, norm_eps=1e-5, original_position=4096)
PARAMETERS = (*tables.EMBEDDING_AND_HEAD, *tables.ATTENTION, *tables.GATED_MLP)


ARCHITECTURE = Architecture(
    "phi3",
    FolderFormat(
        "Phi3ForCausalLM",
        lambda config: config.uniform_decoder(DEFAULTS, window=config.window(default=None), rotates_part=True),
        fields=DEFAULTS.fields | {"sliding_window"},
        harmless=dict.fromkeys(("attention_bias", "use_sliding_window", "lm_head_bias"), NOT_READ),
        picture_classes=("Phi3VForCausalLM", "Phi4MMForCausalLM", "Phi4MultimodalForCausalLM"),
        convert=split_fused_rows,
    ),
    GgufFormat(
        "phi3",
        lambda config: replace(config.decoder(), sliding_window=config.window()),
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
