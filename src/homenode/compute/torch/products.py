"""Rows times matrices.

Whole: one product of all rows, in the type of the matrix; libraries choose another order of summation for another
number of rows. In tiles: products of TILE rows each, the last filled up with zeros, so that every product has the same
shape and a row's bits do not depend on how many others there are.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

TILE = 16
# x: float32 [rows, columns], matrix [outputs, columns] -> float32 [rows, outputs].
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def whole(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x @ weight.T at once. With a narrow matrix x is rounded to its type, sums are float32 and the result is rounded
    once.
    """
    return torch.nn.functional.linear(x.to(weight.dtype), weight).float()


def in_tiles(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x @ weight.T in products of one shape. Matrices are float32.

    One output alone is computed twice: a product with a single column is another routine, in which a row's place in its
    tile matters.
    """
    outputs = weight.shape[0]
    if outputs == 1:
        return in_tiles(x, weight.expand(2, -1))[:, :1]
    rows, columns = x.shape
    tiles = -(-rows // TILE)
    filled = x.new_zeros((tiles * TILE, columns))
    filled[:rows] = x
    turned = weight.t().expand(tiles, columns, outputs)
    return torch.bmm(filled.view(tiles, TILE, columns), turned).view(tiles * TILE, outputs)[:rows]


def finely(product: Product) -> Product:
    """The same, but for a narrow matrix what rounding leaves of x is rounded as well, and its product added."""

    def both(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if weight.dtype == torch.float32:
            return product(x, weight)
        return product(x, weight) + product(x - x.to(weight.dtype).float(), weight)

    return both
