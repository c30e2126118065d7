"""A model given by its figures alone: enough for everything that is decided from headers. Pure.

shape:layers=24,hidden=896,heads=14,kv_heads=2,intermediate=4864,vocab=151936,format=Q4_0,tied=1
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from homenode.dtypes import BY_NAME
from homenode.errors import UserError
from homenode.model.architectures.parameters import expected_tensors
from homenode.model.architectures.registry import architecture_of
from homenode.model.files_read import FilesRead
from homenode.model.spec import ModelSpec, MoeSpec, RopeSpec, TensorEntry

PREFIX = "shape:"
_NUMBERS = {
    "layers": None, "hidden": None, "heads": None, "kv_heads": 0, "head_dim": 0, "intermediate": None, "vocab": None,
    "max_len": 32768,
    "tied": 0, "experts": 0, "experts_per_token": 2,
}  # fmt: skip
_MOST = 1 << 24
_MOST_LAYERS = 4096  # each is a dozen tensors, and times experts
_MOST_TENSORS = 1_000_000
# Formats of matrices, and from how many bytes per value on each is nearer than the next.
_FORMATS = (("F32", 3.0), ("BF16", 1.5), ("Q8_0", 0.9), ("Q6_K", 0.75), ("Q5_K", 0.64), ("Q4_K", 0.0))


@dataclass
class ShapeCheckpoint:
    """A `Checkpoint` whose tensors have names, shapes and formats, but no file."""

    path: Path
    spec: ModelSpec
    tensors: dict[str, TensorEntry]
    metadata: dict[str, object] = field(default_factory=dict)
    files: FilesRead = field(default_factory=FilesRead)


def shape_checkpoint(text: str) -> ShapeCheckpoint:
    """Return what `shape:...` describes. UserError naming the figure that is missing, unknown or cannot be."""
    words = dict(_words(text))
    fmt = words.pop("format", "BF16").upper()
    if fmt not in BY_NAME:
        raise _refusal(text, f"format={fmt} is unknown; such as BF16, Q8_0, Q4_0, Q4_K")
    if unknown := words.keys() - _NUMBERS.keys():
        raise _refusal(text, f"{min(unknown)} is unknown; wanted are {', '.join(_NUMBERS)} and format")
    numbers = {name: _number(text, name, words.get(name, default)) for name, default in _NUMBERS.items()}
    if not numbers["kv_heads"]:
        numbers["kv_heads"] = numbers["heads"]
    spec = _spec(text, numbers)
    tensors = {}
    for expected in expected_tensors(architecture_of(spec.architecture).parameters, spec):
        exact = expected.parameter.kind == "vector" or expected.parameter.key in ("router", "shared_router")
        kept = BY_NAME["F32" if exact else fmt]
        if expected.shape[-1] % kept.block:
            raise _refusal(
                text, f"{expected.name} has rows of {expected.shape[-1]}, and {fmt} stores blocks of {kept.block}"
            )
        rows = expected.shape[0] if len(expected.shape) == 2 else 1
        size = rows * kept.row_bytes(expected.shape[-1])
        tensors[expected.name] = TensorEntry(expected.name, kept, expected.shape, Path(text), 0, size)
    return ShapeCheckpoint(Path(text), spec, tensors)


def _spec(text: str, of: dict[str, int]) -> ModelSpec:
    if of["layers"] > _MOST_LAYERS or of["layers"] * max(1, of["experts"]) * 12 > _MOST_TENSORS:
        raise _refusal(text, f"layers={of['layers']} with experts={of['experts']} is more than can be planned for")
    if of["heads"] % of["kv_heads"]:
        raise _refusal(text, f"heads={of['heads']} is no multiple of kv_heads={of['kv_heads']}")
    if not of["head_dim"] and of["hidden"] % of["heads"]:
        raise _refusal(text, f"hidden={of['hidden']} is no multiple of heads={of['heads']}; give head_dim")
    if of["experts"] and not 1 <= of["experts_per_token"] <= of["experts"]:
        raise _refusal(text, f"experts_per_token={of['experts_per_token']} must be from 1 to experts={of['experts']}")
    moe = MoeSpec(of["experts"], of["experts_per_token"], of["intermediate"], True) if of["experts"] else None
    return ModelSpec(
        architecture="mixtral" if moe else "llama",
        hidden_size=of["hidden"],
        intermediate_size=of["intermediate"],
        num_layers=of["layers"],
        num_heads=of["heads"],
        num_kv_heads=of["kv_heads"],
        head_dim=of["head_dim"] or of["hidden"] // of["heads"],
        vocab_size=of["vocab"],
        max_position=of["max_len"],
        norm_eps=1e-6,
        rope=RopeSpec(),
        tie_word_embeddings=bool(of["tied"]),
        moe=moe,
    )


def _words(text: str) -> list[tuple[str, str]]:
    words = [word.partition("=") for word in text.removeprefix(PREFIX).split(",") if word]
    names = [name.strip() for name, _, _ in words]
    if len(set(names)) < len(names):
        raise _refusal(text, "a figure is given twice")
    return [(name.strip(), value.strip()) for name, _, value in words]


def _number(text: str, name: str, value: str | int | None) -> int:
    if value is None:
        raise _refusal(text, f"{name}=N is missing")
    if isinstance(value, int):
        return value
    if (
        not (value.isascii() and value.isdigit() and len(value) < 10)
        or not (name in ("tied", "experts") or int(value))
        or int(value) > _MOST
    ):
        raise _refusal(text, f"{name}={value[:20]} must be a whole number from 1 to {_MOST}")
    return int(value)


def _refusal(text: str, fault: str) -> UserError:
    return UserError(f"--model {text[:120]}: {fault}", param="model")


def sized_checkpoint(spec: ModelSpec, size: int) -> ShapeCheckpoint:
    """A model of these figures, whose matrices have the format in which its weights take about `size` bytes in all."""
    expected = list(expected_tensors(architecture_of(spec.architecture).parameters, spec))
    elements = sum(tensor.shape[0] * tensor.shape[-1] for tensor in expected if len(tensor.shape) == 2)
    each = size / max(elements, 1)
    near = next((name for name, least in _FORMATS if each > least), _FORMATS[-1][0])
    tensors = {}
    for tensor in expected:
        matrix = len(tensor.shape) == 2 and tensor.shape[-1] % BY_NAME[near].block == 0
        kept = BY_NAME[near if matrix else "F32"]
        rows = tensor.shape[0] if len(tensor.shape) == 2 else 1
        tensors[tensor.name] = TensorEntry(
            tensor.name, kept, tensor.shape, Path(), 0, rows * kept.row_bytes(tensor.shape[-1])
        )
    return ShapeCheckpoint(Path(), spec, tensors)
