"""How a model makes one vector, or scores, of a text in place of further text: which rows of the last layer count, and
what follows them. Plain data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

# The mean over a text's tokens, the row of its first token, or that of its last one.
PoolingKind = Literal["mean", "cls", "last"]
POOLING_KINDS: tuple[PoolingKind, ...] = get_args(PoolingKind)
HeadActivation = Literal["none", "tanh", "relu", "gelu_erf"]


@dataclass(frozen=True)
class HeadLayer:
    """activation(matrix x + bias) of a row x, then a LayerNorm where `norm` names its weight. All names are of
    tensors, "" where there is none.
    """

    matrix: str
    bias: str = ""
    activation: HeadActivation = "none"
    norm: str = ""
    norm_epsilon: float = 1e-5

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors there are."""
        return tuple(name for name in (self.matrix, self.bias, self.norm) if name)


@dataclass(frozen=True)
class PoolingSpec:
    """`rows`: what is made one row. It goes through `head`, layer after layer, whose result has `width` elements.
    `labels`: where that is scores of a text, or of a pair of texts, what each is of; none: it is a vector.
    """

    rows: PoolingKind
    width: int
    head: tuple[HeadLayer, ...] = ()
    labels: tuple[str, ...] = ()

    @property
    def tensors(self) -> frozenset[str]:
        """Names of those of the head."""
        return frozenset(name for layer in self.head for name in layer.names)
