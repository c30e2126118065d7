"""Apertus: Llama's block with norms of heads, and an MLP without a gate, of xIELU (Huang and Schlag 2024).

With the numbers p, n and b of a layer, all positive, xIELU of x is p x^2 + b x above 0 and (n + b) (e^x - 1 - x) + b x
below.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from homenode.compute.ops import Ops, Tensor
from homenode.errors import UnsupportedError
from homenode.model.architectures import stage, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat, renamed
from homenode.model.architectures.parameters import ForwardContext, Parameter, of_model
from homenode.model.architectures.pre_norm import forward_with
from homenode.model.config.folder_config import Defaults
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.config.known_fields import NOT_READ
from homenode.model.formats.fields import Fields
from homenode.model.spec import ModelSpec, TensorEntry, Tensors

DEFAULTS = Defaults(
    max_position=65536, heads=32, vocab=131072, bos_id=1, eos_id=2, norm_eps=1e-5, theta=1.2e7, intermediate=14336,
    attention_bias=False, activation="xielu",
)  # fmt: skip
ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1.2e7,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
KEYS = {"positive": "xielu.alpha_p", "negative": "xielu.alpha_n", "linear": "xielu.beta"}
_EPS_KEY, _LEAST_EPS = "xielu.eps", -1e-4  # x between it and 0 counts as it: less than float32 tells apart
_ACTIVATION, _LAYER = "mlp.act_fn.", "model.layers.{layer}."
_NAMES = {"positive": "alpha_p", "negative": "alpha_n", "linear": "beta"}


@dataclass(frozen=True)
class XieluFactors:
    """Factors of the layers in order, where a file has them among its figures: p, n and b."""

    positive: tuple[float, ...]
    negative: tuple[float, ...]
    linear: tuple[float, ...]


_are_tensors = of_model(lambda spec: spec.own is None)
PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    *tables.ATTENTION_AND_ALL,
    *tables.POST_NORM,
    *tables.GATE_UP_DOWN[1:],
    *(
        Parameter(key, f"{_LAYER}{_ACTIVATION}{name}", ("one",), f"blk.{{layer}}.xielu_{name}", _are_tensors)
        for key, name in _NAMES.items()
    ),
)


def _read_gguf(config: GgufConfig) -> ModelSpec:
    spec = config.decoder()
    bare = Fields(config.path, config.metadata)  # converters write these keys without the architecture in front
    fields = bare if bare.has(_EPS_KEY) else config.fields
    found = {name: fields.numbers(key, above=-1e4, most=1e4) for name, key in KEYS.items()}
    eps = fields.numbers(_EPS_KEY, above=-math.inf, most=1e4)
    for key, values in (*((KEYS[name], values) for name, values in found.items()), (_EPS_KEY, eps)):
        if len(values) != spec.num_layers:
            raise fields.wrong(key, list(values), f"a list of {spec.num_layers} numbers")
    if min(eps) < _LEAST_EPS:
        raise UnsupportedError(
            f"{config.path}: {_EPS_KEY} {min(eps):g} is not supported; homenode wants {_LEAST_EPS:g} or more"
        )
    positive, negative = (
        tuple(math.log1p(math.exp(-abs(x))) + max(x, 0.0) for x in found[n]) for n in ("positive", "negative")
    )
    return replace(spec, own=XieluFactors(positive, negative, found["linear"]))


def _with_factors(tensors: Tensors, _spec: ModelSpec) -> dict[str, TensorEntry]:
    """A folder's tensors, the numbers of each layer as they are meant."""
    found = {}
    for name, entry in tensors.items():
        _, known, number = name.rpartition(_ACTIVATION)
        if known and number == "eps":
            continue
        if known and entry.shape == ():
            entry = replace(entry, shape=(1,))
        found[name] = replace(entry, function="softplus") if known and number.startswith("alpha_") else entry
    return found


def xielu(ops: Ops, model: ForwardContext, index: int, x: Tensor) -> Tensor:
    """xIELU of every value of x, by the numbers of layer `index` of this stage."""
    layer, spec = model.parameters.layers[index], model.spec
    factors: Mapping[str, Any] = layer
    if isinstance(spec.own, XieluFactors):
        number = model.part.layers.first + index
        factors = {name: getattr(spec.own, name)[number] for name in KEYS}
    rest = ops.activate(x, "exp_rest")
    curved = ops.add(ops.scale(ops.activate(x, "relu2"), factors["positive"]), ops.scale(rest, factors["negative"]))
    return ops.add(curved, ops.scale(ops.add(x, rest), factors["linear"]))


def feed_forward(ops: Ops, model: ForwardContext, index: int, x: Tensor) -> Tensor:
    """x plus an MLP of xIELU."""
    layer = model.parameters.layers[index]
    up = ops.linear(stage.normed(ops, model, x, layer["post_norm"]), (layer["up"],))
    return stage.project_out(ops, model, xielu(ops, model, index, up), layer["down"], None, x)


ARCHITECTURE = Architecture(
    "apertus",
    FolderFormat(
        "ApertusForCausalLM",
        lambda config: config.with_rope(ROPE).uniform_decoder(DEFAULTS),
        fields=DEFAULTS.fields,
        harmless=dict.fromkeys(("mlp_bias", "post_norm", "qk_norm"), NOT_READ),
        modules=renamed(
            "model.layers.{layer}.",
            "attention_layernorm=input_layernorm feedforward_layernorm=post_attention_layernorm",
        ),
        convert=_with_factors,
    ),
    GgufFormat("apertus", _read_gguf, keys=frozenset((*KEYS.values(), _EPS_KEY))),
    PARAMETERS,
    forward_with(feed_forward=feed_forward),
)
