"""EXAONE 4: no norm before attention and MLP, but one after each, and one over each head of q and k. Where some layers
see a window, the others have no rope.
"""

from __future__ import annotations

from homenode.model.architectures import tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_kinds import with_gguf_windows, with_windows
from homenode.model.architectures.pre_norm import forward
from homenode.model.config.folder_config import Defaults
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(max_position=2048, heads=32, kv_heads=32, vocab=102400, bos_id=0, eos_id=2, norm_eps=1e-5)
LARGE = 64  # layers of the model whose files may leave its window out
PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    *tables.PROJECTIONS,
    *tables.HEAD_NORMS,
    *tables.NORMS_BEHIND,
    *tables.GATE_UP_DOWN,
)
FIELDS = DEFAULTS.fields | {"sliding_window", "sliding_window_pattern"}


def _read_gguf(config: GgufConfig) -> ModelSpec:
    spec = config.decoder()
    return with_gguf_windows(config, spec, config.window(default=4096 if spec.num_layers == LARGE else 0))


ARCHITECTURE = Architecture(
    "exaone4",
    FolderFormat(
        "Exaone4ForCausalLM",
        lambda config: with_windows(config, config.decoder(DEFAULTS)),
        fields=FIELDS,
        model_types=("exaone4_5_text",),
    ),
    GgufFormat("exaone4", _read_gguf),
    PARAMETERS,
    forward,
)
