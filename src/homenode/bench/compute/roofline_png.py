"""The roofline drawing as PNG, by matplotlib where it is installed (the `bench` extra). `roofline` says what it
shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from homenode.bench.compute.kernels import KernelResult
from homenode.bench.compute.roofline import roofs_of
from homenode.errors import UserError
from homenode.installation import extra_command


def check_matplotlib() -> None:
    """UserError when matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise UserError(
            f"a PNG drawing needs matplotlib, which is not installed: {extra_command('bench', 'matplotlib')}; or "
            "give --plot a file name that ends in .svg",
            param="--plot",
        ) from error


def write_roofline_png(results: Sequence[KernelResult], title: str, file: Path) -> None:
    """Draw the results into `file`. UserError when matplotlib is not installed."""
    check_matplotlib()
    from matplotlib.figure import Figure

    roofs = roofs_of(results)
    figure = Figure(figsize=(9.6, 6), dpi=150, layout="constrained")
    axes = figure.add_subplot(xscale="log", yscale="log", title=title)
    axes.set(xlabel="operations for each byte of weights", ylabel="1e9 operations a second")
    for name in dict.fromkeys(r.format for r in results):
        points = [r for r in results if r.format == name]
        axes.scatter([r.intensity for r in points], [r.gops for r in points], label=name, alpha=0.75, s=24)
    low, high = min(r.intensity for r in results) / 2, max(r.intensity for r in results) * 2
    ridge = min(high, max(roofs.multiply.values()) / roofs.read)
    axes.plot(
        [low, ridge], [low * roofs.read, ridge * roofs.read], color="black", label=f"reading {roofs.read:.0f} GB/s"
    )
    for kind, gops in roofs.multiply.items():
        axes.plot([min(gops / roofs.read, high), high], [gops, gops], color="black")
        axes.annotate(f"{kind} {gops:.0f} GOPS", (high, gops), ha="right", va="bottom")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(file, format="png")
