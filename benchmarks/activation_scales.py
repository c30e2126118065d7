"""What it costs a model's answers to multiply with activations of 8 bits, by how many of them share a scale.

    python -m benchmarks.activation_scales [--model FOLDER_OR_FILE]... [--tokens 256] [--out
        docs/activation-scales.json]

Weights stay exact, so that nothing but the activations differs; the NumPy backend computes. Without --model: the
built-in model and a random one with some columns much larger than the others, as trained models have them. Text is
drawn from the model itself, so that it is text the model knows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.random_model import random_checkpoint
from homenode.compute.ops import FloatArray, Precision, StepArrays
from homenode.compute.reference import ReferenceBackend
from homenode.compute.reference.ops import EagerOps
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.hub.locate import BUILTIN_NAME, builtin_model
from homenode.model.weights.load import LoadedModel, load_model

Rounding = Callable[[FloatArray], FloatArray]
BLOCK = 32  # columns of a part: what homenode's kernels round with one scale


def _rounded(groups: FloatArray, scale: FloatArray) -> FloatArray:
    """To whole multiples of the scale of each group, at most 127 of them."""
    safe = np.where(scale > 0, scale, 1)
    return np.asarray(np.clip(np.rint(groups / safe), -127, 127) * scale, np.float32)


def _by_largest(groups: FloatArray) -> FloatArray:
    return _rounded(groups, np.abs(groups).max(axis=1, keepdims=True) / 127)


def _by_eighths(groups: FloatArray) -> FloatArray:
    """The scale is the next larger one of q/8 times a power of two, q from 8 to 15: see linear_encode.h."""
    least = np.abs(groups).max(axis=1, keepdims=True) / 127
    power = np.exp2(np.floor(np.log2(np.where(least > 0, least, 1))))
    return _rounded(groups, np.where(least > 0, np.ceil(least / power * 8) / 8 * power, 0).astype(np.float32))


def _grouped(x: FloatArray, columns: int, rounding: Rounding) -> FloatArray:
    """`rounding` of every `columns` columns of each row, the last ones filled up with zeros."""
    rows, width = x.shape
    padded = np.zeros((rows, -(-width // columns) * columns), np.float32)
    padded[:, :width] = x
    return np.ascontiguousarray(rounding(padded.reshape(-1, columns)).reshape(rows, -1)[:, :width])


MODES: dict[str, Rounding] = {
    "32 columns, in eighths of a power of two": lambda x: _grouped(x, BLOCK, _by_eighths),
    "32 columns": lambda x: _grouped(x, BLOCK, _by_largest),
    "256 columns": lambda x: _grouped(x, 256, _by_largest),
    "a row": lambda x: _grouped(x, x.shape[1], _by_largest),
}


class _RoundingOps(EagerOps):
    """Products with rounded activations, all else exact."""

    def __init__(self, arrays: StepArrays, rounding: Rounding) -> None:
        super().__init__(arrays)
        self._rounding = rounding

    def linear(
        self,
        x: FloatArray,
        weights: Sequence[FloatArray],
        biases: Sequence[FloatArray | None] = (),
        residual: FloatArray | None = None,
        precision: Precision = "usual",
    ) -> FloatArray:
        """See `Ops.linear`. Blocks are multiplied with rounded activations in either precision."""
        return super().linear(self._rounding(np.ascontiguousarray(x)), weights, biases, residual)


@dataclass(frozen=True)
class Loss:
    """Against the same model without rounding, over the tokens of a text.

    error: root mean square of the differences of the text's log-probabilities, as a share of their spread. perplexity:
    a factor. likeliest: the share of places where the likeliest next token stays the likeliest.
    """

    model: str
    scale_for: str
    error: float
    perplexity: float
    likeliest: float


def cells(loss: Loss) -> tuple[str, ...]:
    """A line of the table, as docs/models.md has it."""
    return (loss.model, loss.scale_for, f"{loss.error:.2%}", f"{loss.perplexity:.4f}", f"{loss.likeliest:.1%}")


def _logprobs(model: LoadedModel, tokens: list[int], rounding: Rounding | None = None, first: int = 0) -> FloatArray:
    """Natural log-probabilities of what follows each token from number `first` on, [tokens, vocabulary]."""
    block = 32
    blocks = -(-len(tokens) // block)
    cache = ReferenceBackend().kv_cache(model.kv_geometry(block, "f32"), blocks)
    n = len(tokens)
    numbers = np.arange(n, dtype=np.int32)
    arrays = StepArrays(
        np.array(tokens, np.int32), numbers, np.array([0, n], np.int32), np.array([n], np.int32),
        np.arange(blocks, dtype=np.int32)[None, :], numbers[first:],
    )  # fmt: skip
    ops = EagerOps(arrays) if rounding is None else _RoundingOps(arrays, rounding)
    logits = np.asarray(model.forward(cache)(ops), np.float64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)), np.float32)


def _text(model: LoadedModel, count: int, seed: int) -> list[int]:
    """Tokens drawn one after the other from the exact model."""
    random = np.random.default_rng(seed)
    tokens = [int(random.integers(model.spec.vocab_size))]
    while len(tokens) < count:
        probabilities = np.exp(_logprobs(model, tokens, first=len(tokens) - 1)[0].astype(np.float64))
        tokens.append(int(random.choice(len(probabilities), p=probabilities / probabilities.sum())))
    return tokens


def losses(name: str, model: LoadedModel, tokens: list[int]) -> list[Loss]:
    """What each mode costs this model over this text."""
    exact = _logprobs(model, tokens)
    place, following = np.arange(len(tokens) - 1), np.array(tokens[1:])
    wanted = exact[place, following]
    found = []
    for mode, rounding in MODES.items():
        seen = _logprobs(model, tokens, rounding)
        difference = seen[place, following] - wanted
        same = float(np.mean(seen.argmax(axis=1) == exact.argmax(axis=1)))
        error = float(np.sqrt(np.mean(difference**2)) / wanted.std())
        found.append(Loss(name, mode, error, float(np.exp(-difference.mean())), same))
    return found


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option(
    "--model",
    "models",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    help="A folder or file; repeatable.",
)
@click.option("--tokens", type=click.IntRange(16, 4096), default=256, show_default=True, help="Tokens of the text.")
@click.option("--out", type=click.Path(path_type=Path), help="Write all figures into this JSON file.")
def main(models: tuple[Path, ...], tokens: int, out: Path | None) -> None:
    """Measure and print."""
    console = Console()
    found: list[Loss] = []
    with TemporaryDirectory() as folder:
        known = {path.name: load_model(open_checkpoint(path), ReferenceBackend()) for path in models}
        if not models:
            known[BUILTIN_NAME] = load_model(open_checkpoint(builtin_model()), ReferenceBackend())
            known["random"] = load_model(random_checkpoint(Path(folder) / "weights"), ReferenceBackend())
        for name, model in known.items():
            with console.status(f"{name}: drawing {tokens} tokens, then computing them in {len(MODES) + 1} ways"):
                found += losses(name, model, _text(model, min(tokens, model.max_model_len), seed=1))
    table = Table("model", "one scale for", "error", "perplexity", "likeliest stays")
    for loss in found:
        table.add_row(*cells(loss))
    console.print(table)
    if out is not None:
        out.write_text(
            json.dumps({"tokens": tokens, "losses": [asdict(loss) for loss in found]}, indent=1) + "\n",
            encoding="utf-8",
        )


if __name__ == "__main__":
    main()
