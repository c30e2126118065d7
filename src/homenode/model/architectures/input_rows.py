"""The models that take rows in place of the embeddings of tokens: those whose tokens mean nothing to them besides."""

from __future__ import annotations

from homenode.model.architectures.registry import architecture_of
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec

# By the key of a parameter, what a model looks up by token ids besides their embeddings.
_BY_TOKEN = {
    "per_layer_table": "its layers read a row of their own for each token (Gemma 3n, small sizes of Gemma 4)",
    "experts_of_token": "its first layers choose experts by token (DeepSeek V4)",
}


def rows_refusal(spec: ModelSpec) -> str | None:
    """Return why a model cannot take rows in place of embeddings; None where it can."""
    if spec.pooling is not None:
        return "it makes vectors or scores of texts"
    part = ModelPart.whole(spec)
    for parameter in architecture_of(spec.architecture).parameters:
        layers = range(spec.num_layers) if parameter.per_layer else (None,)
        if parameter.key in _BY_TOKEN and any(parameter.when(spec, part, layer) for layer in layers):
            return _BY_TOKEN[parameter.key]
    return None
