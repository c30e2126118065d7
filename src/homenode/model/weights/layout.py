"""The storage format that every matrix gets in memory, and why: decided from names and shapes, before a byte moves."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from homenode.dtypes import BY_NAME, DType
from homenode.errors import InternalError, UserError
from homenode.model.spec import TensorEntry
from homenode.model.weights.names import MatchedTensor
from homenode.units import format_bytes, format_count

QUANTIZE = ("q8_0", "q4_0")
DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}

# Formats every backend's weight_from_file decodes by itself (Format in csrc/quant/format.h); others go through the
# checkpoint's decoder.
READ_BY_BACKENDS = frozenset(
    "F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4".split()
)
_FLOATS = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0"})
# The first with a kernel is taken. BF16 holds every value of the 8-bit types, F32 the others' to the last bit a float32
# product could use.
_WITHOUT_KERNEL = {
    "F16": ("F32",), "BF16": ("F32",), "F64": ("F32",), "F8_E4M3": ("BF16", "F32"), "F8_E5M2": ("BF16", "F32"),
    "F8_E8M0": ("BF16", "F32"),
    "I8": ("BF16", "F32"), "U8": ("BF16", "F32"), "BOOL": ("BF16", "F32"),
    "I16": ("F32",), "I32": ("F32",), "I64": ("F32",), "U16": ("F32",), "U32": ("F32",), "U64": ("F32",),
}  # fmt: skip
_QUANTISED_WITHOUT_KERNEL = ("Q8_0", "BF16", "F32")
_LOSSES = {
    "Q8_0": "each block of 32 values moves by at most 1/254 of its largest",
    "BF16": "rounded to 8 significant bits",
}
_WIDE = frozenset({"embed", "lm_head"})  # every token depends on these two: never narrower than Q8_0 by our own doing
# Which experts compute, which tokens are attended to, how fast a state decays, and where a token stands, hangs on
# these. They are small.
_EXACT = frozenset(
    {
        "positions",
        "type_table",
        "router",
        "shared_router",
        "delta_gates",
        "delta_b",
        "delta_a",
        "scan_dt",
        "index_weights",
        "stream_router",
        "stream_predict",
        "stream_correct",
        "attention_mix",
        "mlp_mix",
        "head_mix",
        "experts_of_token",
    }
)


@dataclass(frozen=True)
class OtherParts:
    """Facts of the other parts beside a part of a model: the matrices that only other parts have, and whether all that
    other parts have is kept as float32.
    """

    names: tuple[str, ...] = ()
    float32: bool = True


@dataclass(frozen=True)
class MatrixLayout:
    """One matrix, or what a part of a model has of it: how it is stored in the file, how it will be kept, and why.
    Sizes in bytes; kernels may pad the kept size a little.

    `layer`, `expert`: of an expert's matrix which layer and which of its experts it is of; None for all others.
    """

    name: str
    rows: int
    columns: int
    source: str
    target: str
    reason: str
    source_bytes: int
    target_bytes: int
    layer: int | None = None
    expert: int | None = None


@dataclass(frozen=True)
class WeightLayout:
    """All matrices in the order they are read, and the bytes of the vectors, which become float32."""

    matrices: tuple[MatrixLayout, ...]
    vector_bytes: int
    ignored: tuple[str, ...] = ()  # tensors of the checkpoint nothing needs
    other_parts: OtherParts = OtherParts()
    unaffected: str | None = None  # which setting does nothing to which matrices, where one was given

    @property
    def source_bytes(self) -> int:
        """Bytes of the matrices in the files."""
        return sum(m.source_bytes for m in self.matrices)

    @property
    def target_bytes(self) -> int:
        """Bytes the parameters will take in memory."""
        return sum(m.target_bytes for m in self.matrices) + self.vector_bytes

    @property
    def float32(self) -> bool:
        """Return whether every matrix of the model, whichever part has it, is kept as float32."""
        return self.other_parts.float32 and all(m.target == "F32" for m in self.matrices)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what an operator should be told: matrices not kept as stored, by kind of change, and tensors left
        alone.
        """
        changed: dict[tuple[str, str, str], int] = {}
        for m in self.matrices:
            if m.source != m.target:
                key = (m.source, m.target, m.reason)
                changed[key] = changed.get(key, 0) + 1
        lines = [f"{format_count(n, 'matrix', 'matrices')} {s} -> {t}: {why}" for (s, t, why), n in changed.items()]
        settings = [self.unaffected] if self.unaffected else []
        return tuple(settings + lines + [f"tensor {name} is not used" for name in self.ignored])

    def to_json(self) -> dict[str, Any]:
        """The layout as plain values: what is here."""
        values = {**dataclasses.asdict(self), "source_bytes": self.source_bytes, "target_bytes": self.target_bytes}
        del values["other_parts"], values["unaffected"]
        return values

    def table(self) -> str:
        """A table for people, the layers' matrices of one kind and treatment in one line."""
        groups: dict[tuple[Any, ...], list[MatrixLayout]] = {}
        for m in self.matrices:
            role = re.sub(r"\.\d+\.", ".*.", m.name)
            groups.setdefault((role, m.rows, m.columns, m.source, m.target, m.reason), []).append(m)
        rows = [("matrix", "count", "shape", "stored", "kept", "size", "why")]
        for (role, r, c, source, target, reason), members in groups.items():
            size = format_bytes(sum(m.target_bytes for m in members))
            rows.append((role, str(len(members)), f"{r}x{c}", source, target, size, reason))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        total = f"{format_bytes(self.source_bytes)} in the files, {format_bytes(self.target_bytes)} in memory"
        return "\n".join([*lines, total])


def plan_layout(
    tensors: Sequence[MatchedTensor],
    weight_types: frozenset[str],
    *,
    quantize: str | None = None,
    dtype: str = "auto",
    ignored: tuple[str, ...] = (),
    whole: Sequence[MatchedTensor] = (),
) -> WeightLayout:
    """Decide every matrix's format.

    `whole`: where `tensors` are of a part of a model, those of all of it.

    quantize: None, `q8_0` or `q4_0`: quantise float matrices; with `q4_0` the embedding table and the output matrix get
    Q8_0. dtype: `auto` keeps float matrices as stored, `float32`, `bfloat16` and `float16` convert them. Raises
    UserError for values outside these or both given.
    """
    _check_settings(quantize, dtype, weight_types)
    kept_alike = _of_experts(whole or tensors, lambda tensor: _choose(tensor, weight_types, quantize, dtype)[0])
    matrices, vector_bytes = [], 0
    for tensor in tensors:
        entry = tensor.entry
        if tensor.expected.parameter.kind == "table":
            continue
        if tensor.expected.parameter.kind == "vector":
            vector_bytes += 4 * tensor.shape[0]
            continue
        target, reason = _choose(tensor, weight_types, quantize, dtype)
        alike = kept_alike.get((tensor.expected.layer, tensor.expected.parameter.key), target)
        if alike != target:
            target, reason = alike, "as other experts of the layer are kept otherwise"
        rows, columns = tensor.shape
        size = rows * padded_row_bytes(BY_NAME[target], columns)
        of_expert = (tensor.expected.layer, tensor.expected.expert) if tensor.expected.expert is not None else ()
        source = entry.coded.label if entry.coded else entry.dtype.name
        matrices.append(
            MatrixLayout(entry.name, rows, columns, source, target, reason, tensor.nbytes, size, *of_expert)
        )
    here = {m.name for m in matrices}
    others = [t for t in whole if t.expected.parameter.kind == "matrix" and t.entry.name not in here]
    float32 = all(_choose(t, weight_types, quantize, dtype)[0] == "F32" for t in others)
    told = unaffected((t.entry for t in whole or tensors if t.expected.parameter.kind == "matrix"), quantize, dtype)
    other_parts = OtherParts(tuple(t.entry.name for t in others), float32)
    return WeightLayout(tuple(matrices), vector_bytes, ignored, other_parts, told)


def _of_experts(
    tensors: Sequence[MatchedTensor], choose: Callable[[MatchedTensor], str]
) -> dict[tuple[int | None, str], str]:
    """The format of the matrices of one kind of a layer's experts, by layer and key, where they would have several:
    kernels want one. Where some would be floats it is that of floats, which holds what any of them does.
    """
    chosen: dict[tuple[int | None, str], set[str]] = {}
    for tensor in tensors:
        if tensor.expected.expert is not None and tensor.expected.parameter.kind == "matrix":
            chosen.setdefault((tensor.expected.layer, tensor.expected.parameter.key), set()).add(choose(tensor))
    found = {}
    for place, targets in chosen.items():
        floats = targets & _FLOATS
        if len(targets) > 1:
            found[place] = floats.pop() if len(floats) == 1 else "F32" if floats else "Q8_0"
    return found


def unaffected(matrices: Iterable[TensorEntry], quantize: str | None, dtype: str) -> str | None:
    """Return what to say of `--quantize` or `--dtype` where matrices are quantised in the file: both are for float
    matrices. None where nothing is to be said.
    """
    flag = f"--quantize {quantize}" if quantize is not None else f"--dtype {dtype}" if dtype != "auto" else None
    counts = Counter(_stored_as(entry) for entry in matrices)
    quantised = {kind: n for kind, n in counts.items() if kind}
    if flag is None or not quantised:
        return None
    kinds, number, total = ", ".join(sorted(quantised)), sum(quantised.values()), counts.total()
    if number == total:
        return f"{flag} changes nothing: it is for float matrices, and all {total} are quantised in the file ({kinds})"
    return f"{flag} is for float matrices: {number} of {total} are quantised in the file ({kinds}) and are kept so"


def _stored_as(matrix: TensorEntry) -> str:
    """Return how a quantised matrix lies in the file; empty for one of floats."""
    if matrix.dtype.name in _FLOATS:
        return ""
    return matrix.coded.label if matrix.coded else matrix.dtype.name


def padded_row_bytes(dtype: DType, columns: int) -> int:
    """Bytes of a row kept as `dtype`, its last block filled up."""
    return dtype.row_bytes(-(-columns // dtype.block) * dtype.block)


def _check_settings(quantize: str | None, dtype: str, weight_types: frozenset[str]) -> None:
    if quantize is not None and quantize not in QUANTIZE:
        raise UserError(f"--quantize {quantize} is unknown; choose one of {', '.join(QUANTIZE)}", param="quantize")
    if dtype != "auto" and dtype not in DTYPES:
        raise UserError(f"--dtype {dtype} is unknown; choose one of auto, {', '.join(DTYPES)}", param="dtype")
    if quantize is not None and dtype != "auto":
        raise UserError(
            f"--quantize {quantize} and --dtype {dtype} both say how float matrices are kept; give only one of them",
            param="quantize",
        )
    wanted = quantize.upper() if quantize else DTYPES.get(dtype)
    if wanted is not None and wanted not in weight_types:
        raise UserError(
            f"this backend cannot compute with {wanted} weights; it can with {', '.join(sorted(weight_types))}",
            param="dtype",
        )


def _choose(tensor: MatchedTensor, weight_types: frozenset[str], quantize: str | None, dtype: str) -> tuple[str, str]:
    """Target format of a matrix and the reason for it."""
    source = tensor.entry.dtype.name
    if source in _FLOATS and tensor.expected.parameter.key in _EXACT and "F32" in weight_types:
        return "F32", "as stored" if source == "F32" else "float32, as a rounding would show"
    if source in _FLOATS and quantize is not None:
        if tensor.expected.parameter.key in _WIDE and quantize == "q4_0" and "Q8_0" in weight_types:
            return "Q8_0", "quantised at load; embedding and output keep 8 bits, as every token depends on them"
        return quantize.upper(), f"quantised at load (--quantize {quantize})"
    if source in _FLOATS and dtype != "auto" and (DTYPES[dtype] != source or tensor.entry.coded):
        overflow = "; magnitudes above 65504 become infinite" if dtype == "float16" else ""
        return DTYPES[dtype], f"converted at load (--dtype {dtype}){overflow}"
    if tensor.entry.coded and tensor.entry.coded.packing != "floats":
        return _choose_coded(source, weight_types)
    if tensor.entry.times != 1.0 and source not in _FLOATS:
        return _choose_scaled(source, weight_types)
    return _choose_stored(source, weight_types)


def _choose_stored(source: str, weight_types: frozenset[str]) -> tuple[str, str]:
    """The same of a matrix that no setting is about."""
    if source in weight_types:
        return source, "as stored"
    target = _first_with_kernel(source, weight_types)
    loss = "each block of 32 values moves by at most 1/254 of its largest" if target == "Q8_0" else "no value changes"
    if source in {"F64", "I32", "I64", "U32", "U64"}:
        loss = "rounded to float32"
    elif target == "BF16" and BY_NAME[source].block > 1:
        loss = "rounded to 8 significant bits"
    return target, f"{source} has no kernel here: converted; {loss}"


def _choose_scaled(source: str, weight_types: frozenset[str]) -> tuple[str, str]:
    """The same of a quantised matrix whose values are multiplied with a number that is stored beside it."""
    target = _first_with_kernel("codes and scales", weight_types)
    return target, f"{source} with a scale beside it: multiplied; {_LOSSES.get(target, 'no value changes')}"


def _choose_coded(source: str, weight_types: frozenset[str]) -> tuple[str, str]:
    """The same of a matrix that lies there as codes and scales, which `source` holds once they are put together."""
    if source in weight_types and source not in _FLOATS:
        return source, "the same codes" + ("; zero points as minimums, rounded to float16" if source == "Q4_1" else "")
    if source == "F8_E4M3":
        target = _first_with_kernel(source, weight_types)
        loss = _LOSSES["BF16"] if target == "BF16" else "no value changes"
        return target, f"times its scale, {loss}; --quantize q8_0 takes half the memory"
    target = _first_with_kernel("codes and scales", weight_types)
    if source not in _FLOATS:
        return target, f"{source} has no kernel here: converted"
    return target, f"no block format holds these codes: converted; {_LOSSES.get(target, 'no value changes')}"


def _first_with_kernel(source: str, weight_types: frozenset[str]) -> str:
    candidates = _WITHOUT_KERNEL.get(source, _QUANTISED_WITHOUT_KERNEL)
    for target in candidates:
        if target in weight_types:
            return target
    raise InternalError(
        f"no kernel for {source} and none for {', '.join(candidates)}; the backend has "
        f"{', '.join(sorted(weight_types))}"
    )
