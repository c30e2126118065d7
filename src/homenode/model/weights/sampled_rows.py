"""The matrices that a step multiplies with the rows it samples only: those behind the last layer's attention, and the
output matrix. Pure.
"""

from __future__ import annotations

from homenode.model.formats.limits import EMBEDDING, OUTPUT
from homenode.model.spec import ModelSpec

_QUERY_KEY_VALUE = (".q_proj.weight", ".k_proj.weight", ".v_proj.weight")


def output_matrix(spec: ModelSpec) -> str:
    """The name of the matrix that gives logits: the embedding table, where a model is tied to it."""
    return EMBEDDING if spec.tie_word_embeddings else OUTPUT


def of_sampled_rows(name: str, spec: ModelSpec) -> bool:
    """Return whether the rows of other tokens never get to this matrix (see `select_last` of the architectures)."""
    last = f"model.layers.{spec.num_layers - 1}."
    before = name.endswith(_QUERY_KEY_VALUE) or ".in_proj" in name  # what a layer attends with, or its state takes in
    return name == output_matrix(spec) or (name.startswith(last) and not before)
