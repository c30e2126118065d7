"""The functions of `homenode.compute.arrays`, of tensors."""

from __future__ import annotations

import math

import torch

from homenode.compute.arrays import (
    are_largest,
    exponential,
    hyperbolic_tangent,
    join,
    largest,
    mean,
    normal_distribution,
    root,
    soft_plus,
)


@exponential.register(torch.Tensor)
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x)


@hyperbolic_tangent.register(torch.Tensor)
def _(x: torch.Tensor) -> torch.Tensor:
    """By way of exp: what torch's own gives depends on where a value lies."""
    return 1 - 2 / (1 + torch.exp(2 * x))


@normal_distribution.register(torch.Tensor)
def _(x: torch.Tensor) -> torch.Tensor:
    """To 1e-7, by way of exp (Abramowitz and Stegun 1964, 7.1.26)."""
    size = x.abs()
    t = 1 / (1 + 0.3275911 * math.sqrt(0.5) * size)
    p = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    tail = 0.5 * p * torch.exp(-0.5 * size * size)
    return torch.where(x < 0, tail, 1 - tail)


@root.register(torch.Tensor)
def _(x: torch.Tensor) -> torch.Tensor:
    return x.sqrt()


@soft_plus.register(torch.Tensor)
def _(x: torch.Tensor) -> torch.Tensor:
    """Not torch's own, whose bits depend on where a value lies."""
    return torch.where(x > 20, x, torch.log1p(torch.exp(x)))


@mean.register(torch.Tensor)
def _(x: torch.Tensor, axis: int) -> torch.Tensor:
    return x.mean(dim=axis, keepdim=True)


@largest.register(torch.Tensor)
def _(x: torch.Tensor, axis: int) -> torch.Tensor:
    return x.amax(dim=axis, keepdim=True)


@are_largest.register(torch.Tensor)
def _(x: torch.Tensor, count: int) -> torch.Tensor:
    places = x.sort(dim=1, descending=True, stable=True).indices[:, :count]
    return torch.zeros_like(x).scatter_(1, places, 1.0)


@join.register(torch.Tensor)
def _(x: torch.Tensor, *others: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.cat((x, *others), dim=axis)
