"""nanochat: Llama's block without any weights of norms, a rope that turns the other way round before heads are normed,
an MLP of squared relu, and capped logits.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.errors import UnsupportedError
from homenode.model.architectures import attention, gemma2, llama, stage, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, renamed
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=2048, heads=6, vocab=50304, norm_eps=1e-6, bos_id=0, eos_id=1, intermediate=8192, activation=None,
    attention_bias=False,
)  # fmt: skip
SOFTCAP = 15.0
_EMBED, _, _LM_HEAD = tables.EMBEDDING_AND_HEAD
PARAMETERS = (_EMBED, _LM_HEAD, *tables.PROJECTIONS, *tables.QKV_BIASES, *tables.OUTPUT_BIAS, *tables.GATE_UP_DOWN[1:])


def _read_folder(config: FolderConfig) -> ModelSpec:
    if (activation := config.plain_activation("hidden_act", "relu2")) != "relu2":
        raise UnsupportedError(
            f"{config.path}: hidden_act {activation} is not supported in {config.architecture}; homenode runs relu2"
        )
    spec = config.uniform_decoder(DEFAULTS)
    return replace(spec, logits_softcap=gemma2.softcap(config, "final_logit_softcapping", SOFTCAP))


def _forward(ops: Ops, model: ForwardContext) -> Tensor:
    spec, x = model.spec, stage.enter(ops, model)

    def normed(rows: Tensor, width: int = spec.hidden_size) -> Tensor:
        return ops.rms_norm(rows, width, spec.norm_eps)

    if model.part.first_stage:
        x = normed(x)
    rotation = ops.rope_angles(-model.rope.inverse_frequencies, model.rope.scale)
    for index, layer in enumerate(model.parameters.layers):
        q, k, v = attention.project_qkv(ops, model, index, normed(x))
        q, k = (normed(ops.rope(each, rotation, spec.head_dim), spec.head_dim) for each in (q, k))
        x = attention.attend(ops, model, index, x, (q, k, v), None)
        inner = ops.activate(ops.linear(normed(x), (layer["up"],)), "relu2")
        x = stage.project_out(ops, model, inner, layer["down"], None, x)
    return stage.logits_of(ops, model, normed(x)) if model.part.last_stage else x


ARCHITECTURE = Architecture(
    "nanochat",
    FolderFormat(
        "NanoChatForCausalLM",
        _read_folder,
        fields=DEFAULTS.fields | {"hidden_act", "final_logit_softcapping"},
        modules=renamed("model.layers.{layer}.", "mlp.fc1=mlp.up_proj mlp.fc2=mlp.down_proj"),
    ),
    llama.ARCHITECTURE.gguf.without_files(),
    PARAMETERS,
    _forward,
)
