"""LFM3: LFM2's short convolutions beside attention, of which some layers see a window and have a rope of their own;
what each head attends to has a gate, and what each half of a layer adds has a norm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import lfm2
from homenode.model.architectures.architecture import Architecture, FolderFormat, renamed
from homenode.model.architectures.parameters import ForwardContext, of_model
from homenode.model.architectures.pre_norm import forward_with
from homenode.model.architectures.tables import layer_weight
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.folder_rope import NEVER_TURNS
from homenode.model.formats import limits
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec
from homenode.model.state_mixers import ConvolutionSpec, attends, with_mixer

DEFAULTS = Defaults(
    max_position=128000, heads=16, kv_heads=4, head_dim=128, vocab=128000, norm_eps=1e-5, theta=1e6, local_theta=1e4,
    intermediate=7680, bos_id=124894, eos_id=124900, activation=None,
)  # fmt: skip
WINDOW, TURNING = 256, 0.5  # of heads in layers without a window, where config.json says nothing of ropes
KINDS = ("conv", "sliding_attention", "full_attention")
_IN_LAYER = {"o": "self_attn.o_proj", "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"}


@dataclass(frozen=True)
class GatedSandwich:
    """`gates`: heads have gates; `norms_behind`: what each half of a layer adds has a norm."""

    gates: bool
    norms_behind: bool


def _of(spec: ModelSpec) -> GatedSandwich:
    return spec.own if isinstance(spec.own, GatedSandwich) else GatedSandwich(True, True)


def _has_gate(spec: ModelSpec, part: ModelPart, layer: int | None) -> bool:
    return _of(spec).gates and attends(spec, part, layer)


_has_norms_behind = of_model(lambda spec: _of(spec).norms_behind)
PARAMETERS = (
    *(
        replace(each, name=f"model.layers.{{layer}}.{_IN_LAYER[each.key]}.weight") if each.key in _IN_LAYER else each
        for each in lfm2.MIXERS
    ),
    layer_weight("attention_gate", "self_attn.gate_proj", "attn_gate", "heads", "hidden", when=_has_gate),
    layer_weight("attended_norm", "post_operator_norm", "post_attention_norm", "hidden", when=_has_norms_behind),
    layer_weight("mlp_norm", "post_ffn_norm", "post_ffw_norm", "hidden", when=_has_norms_behind),
)


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = config.respelled(lfm2.SPELLED)
    fields = config.fields
    fields.refuse_others({"attention_bias": False})
    spec = config.decoder(DEFAULTS, rotates_part=True)
    if not (fields.table("rope_parameters") or fields.table("rope_scaling")):
        pairs = spec.head_dim // 2
        turning = int(pairs * TURNING)
        factors = (1.0,) * turning + (NEVER_TURNS,) * (pairs - turning)
        spec = replace(spec, rope=replace(spec.rope, factors=factors))
    layers = range(spec.num_layers)
    kinds = fields.texts("layer_types") or tuple(
        KINDS[2 if layer % 4 == 2 else int(layer > 0 and layer % 4 == 0)] for layer in layers
    )
    if len(kinds) != len(layers) or not set(kinds) <= set(KINDS):
        raise fields.wrong("layer_types", list(kinds), f"{len(layers)} values, each one of {', '.join(KINDS)}")
    mixer = ConvolutionSpec(
        tuple(layer for layer in layers if kinds[layer] == KINDS[0]),
        spec.hidden_size,
        fields.integer("conv_L_cache", 7, minimum=2, maximum=64) - 1,
        fields.boolean("conv_bias", False),
    )
    window = fields.integer("sliding_window", WINDOW, maximum=limits.MOST_POSITION)
    sliding = tuple(kind == KINDS[1] for kind in kinds)
    own = GatedSandwich(fields.boolean("use_attention_gate", True), fields.boolean("use_sandwich_norm", True))
    spec = replace(spec, own=own, local_rope=spec.local_rope if any(sliding) else None)
    if any(sliding):
        spec = replace(spec, sliding_window=window, sliding_layers=sliding)
    return with_mixer(spec, mixer, [layer for layer in layers if kinds[layer] != KINDS[0]])


def _gated(ops: Ops, model: ForwardContext, index: int, h: Tensor, found: Tensor) -> Tensor:
    layer = model.parameters.layers[index]
    return ops.gate_runs(found, ops.linear(h, (layer["attention_gate"],))) if "attention_gate" in layer else found


ARCHITECTURE = Architecture(
    "lfm3",
    FolderFormat(
        "Lfm3ForCausalLM",
        _read_folder,
        fields=lfm2.FIELDS.union(
            "attention_bias sliding_window use_attention_gate use_sandwich_norm rope_local_base_freq".split()
        ),
        modules=renamed("model.layers.{layer}.", "self_attn.g_proj=self_attn.gate_proj"),
        convert=lfm2.convert,
    ),
    lfm2.ARCHITECTURE.gguf.without_files(),
    PARAMETERS,
    forward_with(gate=_gated, mixer=lfm2.convolved, mixer_out="conv_o"),
)
