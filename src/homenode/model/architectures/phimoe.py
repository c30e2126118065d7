"""Phi-3.5-MoE: LayerNorm, biases of attention and of the output, and two experts a token by sparsemixer."""

from __future__ import annotations

from dataclasses import replace

from homenode.errors import UnsupportedError
from homenode.model.architectures import mixtral
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_norm_decoder import WITHOUT_MLP, BlockStyle, forward
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats.fields import Fields
from homenode.model.spec import ModelSpec, MoeSpec

DEFAULTS = Defaults(
    max_position=131072, heads=32, kv_heads=8, vocab=32064, bos_id=1, eos_id=2, norm_eps=1e-5, theta=1e6,
    intermediate=6400, attention_bias=False
)  # fmt: skip
EXPERTS = ExpertDefaults(experts=16, experts_per_token=2, size=0, keys=("num_local_experts",))
JITTER = 0.01  # which GGUF files do not have
PARAMETERS = (*WITHOUT_MLP, *mixtral.EXPERT_PARAMETERS)


def _read_folder(config: FolderConfig) -> ModelSpec:
    fields = config.fields
    spec = config.uniform_decoder(DEFAULTS, window=config.window(default=None))
    moe = config.moe(EXPERTS, normalise=False, size=spec.intermediate_size)
    return replace(
        _with_magnitude(spec, config),
        moe=_routed(fields, moe, fields.number("router_jitter_noise", JITTER, least=0.0, most=1.0)),
        own=BlockStyle(head_bias=fields.boolean("lm_head_bias", False)),
    )


def _with_magnitude(spec: ModelSpec, config: FolderConfig) -> ModelSpec:
    """The class multiplies cosines and sines with `short_mscale` or `long_mscale`, where there is a scaling."""
    table = config.rope_table
    if table is None or spec.rope.kind == "default":
        return spec
    short, long = (table.number(key, most=1e3) for key in ("short_mscale", "long_mscale"))
    if short != long:
        raise UnsupportedError(
            f"{config.path}: short_mscale {short:g} beside long_mscale {long:g} is not supported; homenode wants both "
            "equal"
        )
    return replace(spec, rope=replace(spec.rope, attention_factor=short))


def _routed(fields: Fields, moe: MoeSpec, jitter: float) -> MoeSpec:
    if moe.experts_per_token != 2:
        raise UnsupportedError(
            f"{fields.path}: num_experts_per_tok {moe.experts_per_token} is not supported; homenode wants 2"
        )
    return replace(moe, score="sparsemixer", jitter=jitter)


def _read_gguf(config: GgufConfig) -> ModelSpec:
    spec, there = config.decoder(), config.tensors.keys()
    router = "model.layers.{layer}.block_sparse_moe.gate.weight"
    moe = config.moe(spec, router, size=spec.intermediate_size, normalise=False)
    style = BlockStyle(norm_biases="model.norm.bias" in there, head_bias="lm_head.bias" in there)
    routed = _routed(config.fields, moe, JITTER)
    return replace(spec, sliding_window=config.window(), moe=routed, own=style)


ARCHITECTURE = Architecture(
    "phimoe",
    FolderFormat(
        "PhimoeForCausalLM",
        _read_folder,
        fields=DEFAULTS.fields | EXPERTS.fields.union("sliding_window lm_head_bias router_jitter_noise".split()),
        harmless={"input_jitter_noise": "of training only"},
        older_classes=("PhiMoEForCausalLM",),
    ),
    GgufFormat("phimoe", _read_gguf),
    PARAMETERS,
    forward,
)
