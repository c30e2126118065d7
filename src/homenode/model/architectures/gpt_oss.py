"""gpt-oss: Llama's block with attention sinks, a window in every second layer, and experts with biases and a clamped
gate. The matrices of its experts lie in stacks, rows of gate and up alternating.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_kinds import all_but_each
from homenode.model.architectures.parameters import always
from homenode.model.architectures.pre_norm import forward
from homenode.model.architectures.tables import layer_bias, layer_weight
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats.stacked_experts import StackedExperts
from homenode.model.spec import ModelSpec, MoeSpec

DEFAULTS = Defaults(
    max_position=131072, heads=64, kv_heads=8, head_dim=64, vocab=201088, norm_eps=1e-5, theta=150000.0,
    activation=None, attention_bias=True,
)  # fmt: skip
EXPERTS = ExpertDefaults(experts=128, experts_per_token=4, size=0)  # config.json never says a size
ROPE = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "truncate": False,
}
WINDOW, PATTERN = 128, 2
GATE = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}  # of the clamped gate
_EXPERT = "mlp.experts.{expert}."
PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    *tables.ATTENTION_AND_BIASES,
    tables.SINKS,
    tables.POST_ATTENTION_NORM,
    layer_weight("router", "mlp.router", "ffn_gate_inp", "experts", "hidden"),
    layer_bias("router_bias", "mlp.router", "ffn_gate_inp", "experts", always),
    *tables.EXPERTS[1:],
    layer_bias("expert_gate_bias", _EXPERT + "gate_proj", "ffn_gate_exps", "expert_intermediate", always),
    layer_bias("expert_up_bias", _EXPERT + "up_proj", "ffn_up_exps", "expert_intermediate", always),
    layer_bias("expert_down_bias", _EXPERT + "down_proj", "ffn_down_exps", "hidden", always),
)


def _routed(moe: MoeSpec) -> MoeSpec:
    return replace(moe, score="chosen_softmax", normalise=True, activation="clamped")


def _read_folder(config: FolderConfig) -> ModelSpec:
    config.fields.refuse_others(GATE)
    spec = config.with_rope(ROPE).decoder(DEFAULTS)
    spec = config.with_window_in(spec, config.window(default=WINDOW), lambda n: all_but_each(n, PATTERN))
    return replace(spec, moe=_routed(config.moe(EXPERTS, normalise=True, size=spec.intermediate_size)))


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file, which does not say that the range of YaRN's pairs is not rounded."""
    spec = config.decoder(theta=DEFAULTS.theta)
    moe = _routed(config.moe(spec, "model.layers.{layer}.mlp.router.weight", size=spec.intermediate_size, scores=(3,)))
    spec = replace(spec, rope=replace(spec.rope, truncate=False), moe=moe)
    window = config.window(default=WINDOW)
    return replace(spec, sliding_window=window, sliding_layers=all_but_each(spec.num_layers, PATTERN) if window else ())


ARCHITECTURE = Architecture(
    "gpt_oss",
    FolderFormat(
        "GptOssForCausalLM",
        _read_folder,
        fields=DEFAULTS.fields | EXPERTS.fields | GATE.keys() | {"sliding_window"},
        harmless={
            "hidden_act": "its experts have a gate of their own",
            "experts_per_token": "num_experts_per_tok says it",
            "initial_context_length": "the rope parameters say it",
        },
        convert=StackedExperts(turned=True, alternating=True).split,
    ),
    GgufFormat("gpt-oss", read_gguf),
    PARAMETERS,
    forward,
)
