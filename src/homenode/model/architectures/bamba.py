"""Bamba: layers with the recurrence of Mamba 2, or with attention that rotates half of each head, each followed by a
gated MLP. GGUF files of it say that they are of Granite 4's architecture.
"""

from __future__ import annotations

from homenode.model.architectures import granitemoehybrid, mamba_mixer
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.falcon_h1 import BESIDE_MIXERS
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.spec import ModelSpec
from homenode.model.state_mixers import with_mixer

DEFAULTS = Defaults(
    max_position=262144, heads=32, kv_heads=8, vocab=128000, bos_id=1, eos_id=2, norm_eps=1e-5, intermediate=14336,
    rotary_share=0.5, attention_bias=False, mlp_bias=False,
)  # fmt: skip
PARAMETERS = (*BESIDE_MIXERS, *mamba_mixer.ATTENTION, *mamba_mixer.parameters("mamba"))


def _read_folder(config: FolderConfig) -> ModelSpec:
    fields, spec = config.fields, config.decoder(DEFAULTS, rotates_part=True)
    attending = [layer for layer in fields.integers("attn_layer_indices") if layer < spec.num_layers]
    kinds = tuple("full_attention" if n in attending else "linear_attention" for n in range(spec.num_layers))
    if (seen := fields.texts("layer_types")) not in ((), kinds):
        raise fields.wrong("layer_types", list(seen), f"what attn_layer_indices says: {', '.join(kinds)}")
    recurrent = [layer for layer in range(spec.num_layers) if layer not in attending]
    inner = mamba_mixer.expanded(fields, spec.hidden_size)
    return with_mixer(spec, mamba_mixer.read_folder(fields, recurrent, inner), attending)


ARCHITECTURE = Architecture(
    "bamba",
    FolderFormat(
        "BambaForCausalLM",
        _read_folder,
        fields=DEFAULTS.fields | mamba_mixer.FIELDS | {"attn_layer_indices"},
        harmless=mamba_mixer.HARMLESS
        | dict.fromkeys(
            "num_logits_to_keep z_loss_coefficient attn_rotary_emb".split(), "its class does not compute with it"
        ),
        convert=mamba_mixer.convert_folder,
    ),
    GgufFormat("granitehybrid", granitemoehybrid.read_gguf, keys=mamba_mixer.KEYS).without_files(),
    PARAMETERS,
    mamba_mixer.forward,
)
