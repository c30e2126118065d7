"""The functions of `homenode.compute.arrays`, of tensors."""

from __future__ import annotations

import torch

from homenode.compute.arrays import exponential, hyperbolic_tangent, join, largest, mean, root


@exponential.register(torch.Tensor)
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x)


@hyperbolic_tangent.register(torch.Tensor)
def _(x: torch.Tensor) -> torch.Tensor:
    """By way of exp: what torch's own gives depends on where a value lies."""
    return 1 - 2 / (1 + torch.exp(2 * x))


@root.register(torch.Tensor)
def _(x: torch.Tensor) -> torch.Tensor:
    return x.sqrt()


@mean.register(torch.Tensor)
def _(x: torch.Tensor, axis: int) -> torch.Tensor:
    return x.mean(dim=axis, keepdim=True)


@largest.register(torch.Tensor)
def _(x: torch.Tensor, axis: int) -> torch.Tensor:
    return x.amax(dim=axis, keepdim=True)


@join.register(torch.Tensor)
def _(x: torch.Tensor, *others: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.cat((x, *others), dim=axis)
