"""EXAONE 4: no norm before attention and MLP, but one after each, and one over each head of q and k. Where some layers
see a window, the others have no rope.
"""

from __future__ import annotations

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import common, olmo2
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.common import layer_weight
from homenode.model.architectures.layer_kinds import with_gguf_windows, with_windows
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.architectures.pre_norm import project
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

NAME = "exaone4"
DEFAULTS = Defaults(max_position=2048, heads=32, kv_heads=32, vocab=102400, bos_id=0, eos_id=2, norm_eps=1e-5)
LARGE = 64  # layers of the model whose files may leave its window out
PARAMETERS = (
    *common.EMBEDDING_AND_HEAD,
    *common.PROJECTIONS,
    *common.HEAD_NORMS,
    layer_weight("attended_norm", "post_attention_layernorm", "post_attention_norm", "hidden"),
    *common.GATE_UP_DOWN,
    layer_weight("mlp_norm", "post_feedforward_layernorm", "post_ffw_norm", "hidden"),
)
FIELDS = frozenset(("hidden_act", "sliding_window", "sliding_window_pattern"))


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    config.refuse_activation("hidden_act", "silu")
    return with_windows(config, config.decoder(NAME, DEFAULTS))


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    spec = config.decoder(NAME)
    return with_gguf_windows(config, spec, config.window(default=4096 if spec.num_layers == LARGE else 0))


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """Logits of the step's selected rows, or the rows for the next stage."""
    x = common.enter(ops, model)
    rotation = common.angles(ops, model.rope)
    for index in range(len(model.parameters.layers)):
        x = olmo2.layer_of(ops, model, index, x, project(ops, model, index, x, rotation))
    return common.leave(ops, model, x)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat("Exaone4ForCausalLM", read_folder, fields=FIELDS),
    GgufFormat("exaone4", read_gguf),
    PARAMETERS,
    forward,
)
