"""A check that weights fit the memory of the nodes they are to lie on, and what to say when they do not. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from homenode.errors import PlacementError
from homenode.units import format_bytes


def check_node_capacity(policy: str, too_full: Mapping[int, tuple[int, int]], fitting: Mapping[str, int]) -> None:
    """`too_full`: nodes with the bytes wanted and free there. `fitting`: the policies that would fit, with their bytes
    in all.

    Raises PlacementError weights_do_not_fit, naming the nodes, what was wanted and what is free, and the policies that
    would fit.
    """
    if not too_full:
        return
    wanted = ", ".join(f"{format_bytes(size)} on node {node}" for node, (size, _) in sorted(too_full.items()))
    free = ", ".join(f"{format_bytes(room)} on node {node}" for node, (_, room) in sorted(too_full.items()))
    raise PlacementError(
        "weights_do_not_fit",
        f"the weights do not fit the memory of NUMA node {', '.join(map(str, sorted(too_full)))} under --numa {policy}",
        seen=f"free: {free}",
        wanted=wanted,
        remedy=_remedy(fitting),
        param="--numa",
    )


def check_total_capacity(policy: str, total: int, available: int | None, fitting: Mapping[str, int]) -> None:
    """`available`: bytes that this process may take of all nodes together, its cgroups' limit included; None: not
    known.

    Raises PlacementError weights_do_not_fit.
    """
    if available is None or total <= available:
        return
    raise PlacementError(
        "weights_do_not_fit",
        f"the weights do not fit what this process may take under --numa {policy}",
        seen=f"{format_bytes(available)} in all, limits of its cgroups included",
        wanted=format_bytes(total),
        remedy=_remedy(fitting),
        param="--numa",
    )


def _remedy(fitting: Mapping[str, int]) -> str:
    if not fitting:
        return "No policy fits: take a smaller or more strongly quantised model, free memory, or compute on more nodes."
    choices = ", ".join(f"--numa {policy} ({format_bytes(size)} in all)" for policy, size in fitting.items())
    return f"What fits: {choices}."
