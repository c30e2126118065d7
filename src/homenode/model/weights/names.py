"""Matching an architecture's parameter table with the tensors of a checkpoint, before any weight is read."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property

from homenode.dtypes import BY_NAME
from homenode.errors import CheckpointError, UnsupportedError
from homenode.model.architectures.architecture import Architecture
from homenode.model.architectures.parameters import ExpectedTensor, expected_tensors
from homenode.model.formats import limits
from homenode.model.formats.fallback_decode import iter_decoded_rows
from homenode.model.part import ModelPart
from homenode.model.spec import Checkpoint, TensorEntry
from homenode.units import format_count

# Tensors old exporters wrote that carry nothing: constants computed from the configuration, and GGUF's rope divisors,
# already in the RopeSpec.
_HARMLESS = re.compile(
    r"(.*\.)?(rotary_emb\.inv_freq|rotary_emb\.(cos|sin)_cached|(attn|attention)\.(masked_bias|bias)"
    r"|rope_freqs\.weight)"
)
_BIASES = frozenset({"F16", "BF16", "F32"})
_SHOWN = 5


@dataclass(frozen=True)
class MatchedTensor:
    """A tensor the model needs, or a part of it (`expected.cut`), and where its bytes are: all of them, whatever the
    part.
    """

    expected: ExpectedTensor
    entry: TensorEntry

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Return what is wanted of it."""
        return tuple(piece.count for piece in self.expected.cut)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of what is read of it at load, in the file."""
        if self.expected.parameter.kind == "table":
            return 0
        return self.entry.stored_bytes * math.prod(self.shape) // math.prod(self.expected.shape)


@dataclass(frozen=True)
class MatchedTensors:
    """The tensors to load, in the order the model uses it, the names of tensors left alone, and the tensors of all
    parts, whole.
    """

    tensors: tuple[MatchedTensor, ...]
    ignored: tuple[str, ...]
    whole: tuple[MatchedTensor, ...]


def match_tensors(architecture: Architecture, checkpoint: Checkpoint, part: ModelPart | None = None) -> MatchedTensors:
    """Pair every parameter of a part of the model (None: all of it) with its tensor. The checkpoint is checked as a
    whole.

    CheckpointError, naming the tensors with what was seen and wanted, when some are missing, unknown or of another
    shape or size; UnsupportedError for a tensor the model needs in a format homenode does not know.
    """
    spec, tensors = checkpoint.spec, checkpoint.tensors
    wanted = list(expected_tensors(architecture.parameters, spec))
    missing = [e.name for e in wanted if e.name not in tensors]
    if missing:
        raise CheckpointError(
            f"{checkpoint.path}: {_listed(missing)} missing: a {architecture.name} model with "
            f"{format_count(spec.num_layers, 'layer')} has them, the "
            f"{format_count(len(tensors), 'tensor')} here do not; the files are incomplete, or their configuration "
            "describes another model",
            missing=missing,
        )
    matched = tuple(MatchedTensor(e, tensors[e.name]) for e in wanted)
    for match in matched:
        _check(checkpoint, match)
    ignored = _ignored(architecture, checkpoint, {e.name for e in wanted})
    if part is None or part.is_whole:
        return MatchedTensors(matched, ignored, matched)
    here = tuple(MatchedTensor(e, tensors[e.name]) for e in expected_tensors(architecture.parameters, spec, part))
    return MatchedTensors(here, ignored, matched)


def _check(checkpoint: Checkpoint, match: MatchedTensor) -> None:
    """The format must be known, the shape the expected one, a row whole blocks, and the byte count that of
    the shape.
    """
    entry, want = match.entry, match.expected
    if entry.dtype.name not in BY_NAME:
        raise UnsupportedError(
            f"{entry.file}: tensor {entry.name} is stored as {entry.dtype.name}, a format this version does not know; "
            f"known: {', '.join(BY_NAME)}",
            tensor=entry.name,
        )
    if tuple(entry.shape) != want.shape:
        raise CheckpointError(
            f"{checkpoint.path}: tensor {entry.name} has shape {list(entry.shape)}, but the configuration asks for "
            f"{list(want.shape)} "
            f"({' x '.join(want.parameter.shape)}); weights and configuration belong to different models",
            tensor=entry.name,
            seen=tuple(entry.shape),
            wanted=want.shape,
        )
    columns = want.shape[-1]
    if columns % entry.dtype.block:
        raise CheckpointError(
            f"{checkpoint.path}: tensor {entry.name} is stored as {entry.dtype.name}, in blocks of "
            f"{entry.dtype.block}, but its rows have {format_count(columns, 'element')}",
            tensor=entry.name,
        )
    rows = want.shape[0] if len(want.shape) == 2 else 1
    size = rows * entry.dtype.row_bytes(columns)
    if entry.nbytes != size:
        raise CheckpointError(
            f"{checkpoint.path}: tensor {entry.name} has {entry.nbytes} bytes; {list(entry.shape)} of "
            f"{entry.dtype.name} takes {size}",
            tensor=entry.name,
            seen=entry.nbytes,
            wanted=size,
        )


def _ignored(architecture: Architecture, checkpoint: Checkpoint, used: set[str]) -> tuple[str, ...]:
    """Names of known harmless leftovers; CheckpointError for any other tensor the model would not use."""
    pooling = checkpoint.spec.pooling
    head = frozenset[str]() if pooling is None else pooling.tensors
    extra = [name for name in checkpoint.tensors if name not in used and name not in head]
    without_output = checkpoint.spec.tie_word_embeddings or pooling is not None
    unknown = [
        name
        for name in extra
        if not (without_output and name == limits.OUTPUT)
        and not _HARMLESS.fullmatch(name)
        and not _adds_nothing(checkpoint, name)
    ]
    if unknown:
        raise CheckpointError(
            f"{checkpoint.path}: {_listed(unknown)} not part of a {architecture.name} model as configured; computing "
            "without would give wrong answers, so the model is refused: it is a variant homenode does not know, or its "
            "configuration is wrong",
            unknown=unknown,
        )
    return tuple(extra)


def _adds_nothing(checkpoint: Checkpoint, name: str) -> bool:
    """Return whether this is one of the biases of zeros that older versions of AutoGPTQ wrote beside every matrix."""
    entry, matrix = checkpoint.tensors[name], checkpoint.tensors.get(f"{name.removesuffix('.bias')}.weight")
    if not name.endswith(".bias") or matrix is None or matrix.coded is None or entry.shape != matrix.shape[:1]:
        return False
    return entry.dtype.name in _BIASES and not any((rows != 0).any() for rows in iter_decoded_rows(entry))


def _listed(names: list[str]) -> str:
    """`tensor a is`, `tensors a, b are`, at most a few of them by name."""
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    return f"tensor {shown} is" if len(names) == 1 else f"tensors {shown} are"
