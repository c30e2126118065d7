"""The inputs that each layer takes in for each token besides the rows of the layer before: a row of a large table,
which stays in its file, and one of the embedding's projection (Gemma 3n, small sizes of Gemma 4).
"""

from __future__ import annotations

import math
from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import stage
from homenode.model.architectures.parameters import ForwardContext, Parameter, of_model
from homenode.model.architectures.stage import Layer
from homenode.model.architectures.tables import layer_weight
from homenode.model.spec import ModelSpec

WIDTH = 256  # elements that a layer takes in for each token, unless a model says otherwise

taken = of_model(lambda spec: spec.dimensions.get("per_layer", 0) > 0)
ON_TOP = (
    Parameter(
        "per_layer_table",
        "model.embed_tokens_per_layer.weight",
        ("per_layer_vocabulary", "all_per_layer"),
        "per_layer_token_embd.weight",
        taken,
        stays_in_file=True,
    ),
    Parameter(
        "per_layer_projection",
        "model.per_layer_model_projection.weight",
        ("all_per_layer", "hidden"),
        "per_layer_model_proj.weight",
        taken,
    ),
    Parameter(
        "per_layer_norm",
        "model.per_layer_projection_norm.weight",
        ("per_layer",),
        "per_layer_proj_norm.weight",
        taken,
    ),
)
OF_LAYERS = (
    layer_weight("per_layer_gate", "per_layer_input_gate", "inp_gate", "per_layer", "hidden", when=taken),
    layer_weight("per_layer_out", "per_layer_projection", "proj", "hidden", "per_layer", when=taken),
    layer_weight("per_layer_out_norm", "post_per_layer_input_norm", "post_norm", "hidden", when=taken),
)


def with_inputs(spec: ModelSpec, width: int, vocabulary: int, **more: int) -> ModelSpec:
    """The figures with `width` elements that a layer takes in for each token, by a table of so many rows. `more`:
    further dimensions.
    """
    inputs = {"per_layer": width, "all_per_layer": width * spec.num_layers, "per_layer_vocabulary": vocabulary}
    return replace(spec, dimensions=inputs | more)


def of_tokens(ops: Ops, model: ForwardContext) -> tuple[Tensor, ...]:
    """Return what each layer of the model takes in: a part of the token's row of the table, and one of its embedding's
    projection. Row 0 of the table is that of tokens past it.
    """
    spec, top = model.spec, model.parameters.top
    width = spec.dimensions["per_layer"]
    of_token = ops.scale(ops.stored_rows(top["per_layer_table"], otherwise=0), math.sqrt(width))
    projected = ops.linear(stage.embedded(ops, model), (top["per_layer_projection"],))
    of_embedding = stage.normed(ops, model, ops.scale(projected, spec.hidden_size**-0.5), top["per_layer_norm"])
    both = ops.scale(ops.add(of_embedding, of_token), 2**-0.5)
    return tuple(ops.split(both, [width] * spec.num_layers))


def behind(ops: Ops, model: ForwardContext, layer: Layer, x: Tensor, of_layer: Tensor) -> Tensor:
    """Return what a layer makes of x, its result, and what it takes in."""
    gated = ops.gelu_mul(ops.linear(x, (layer["per_layer_gate"],)), of_layer)
    return stage.normed(ops, model, ops.linear(gated, (layer["per_layer_out"],)), layer["per_layer_out_norm"])
