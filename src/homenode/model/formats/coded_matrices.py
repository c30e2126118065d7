"""The tensors of a quantised folder -> its matrices: `X.qweight`, `X.scales`, `X.qzeros`... become one entry
`X.weight`.

Known from headers alone, but for the order of columns. An entry bears the block format that holds the very same codes,
where there is one; else a float format, which says that its values are put together as floats when it is read
(coded_rows.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from homenode.dtypes import BY_NAME
from homenode.model.formats import limits
from homenode.model.formats.bounded_files import damaged, read_at
from homenode.model.formats.coded_rows import column_order
from homenode.model.formats.quantisation import Quantisation
from homenode.model.spec import CodedMatrix, TensorEntry
from homenode.units import format_count

_WORDS = frozenset({"I32", "U32"})
_INDICES = frozenset({"I32", "I64"})
_FLOATS = frozenset({"F16", "BF16", "F32"})
_SCALES = _FLOATS | {"F8_E8M0", "U8"}  # the last two are powers of two
_BYTES = frozenset({"I8", "F8_E4M3"})
_WORD_BITS = 32
_BLOCK = 32  # columns of a block of Q4_0, Q4_1, Q8_0 and MXFP4
_OF_ACTIVATIONS = re.compile(
    r".*\.((input|output|[qkv]|kv)_(global_)?(scale|zero_point)|input_scale_ub|(\w+_)?activation_scale)"
)


def with_coded_matrices(tensors: dict[str, TensorEntry], quantisation: Quantisation) -> dict[str, TensorEntry]:
    """The tensors of a folder, with those that make up a quantised matrix as one, and without those for rounding
    activations.

    CheckpointError, naming the tensor, where parts are missing or their shapes and types do not go together.
    """
    read = _READERS[quantisation.method]
    used: set[str] = set()
    found: dict[str, TensorEntry] = {}
    for name in tensors:
        module = _Module(tensors, name.rpartition(".")[0], used)
        if (matrix := read(module, name, quantisation)) is None:
            continue
        entry = _entry(f"{module.name}.{matrix.part}", matrix, quantisation.symmetric)
        if entry.name in found or (entry.name in tensors and matrix.coded.codes.name != entry.name):
            raise damaged(entry.file, f"tensor {entry.name}", seen="more than one", wanted="every matrix once")
        found[entry.name] = entry
    return {n: e for n, e in tensors.items() if n not in used and not _OF_ACTIVATIONS.fullmatch(n)} | found


@dataclass(frozen=True)
class _Matrix:
    rows: int
    columns: int
    coded: CodedMatrix
    experts: int = 0  # 0: one matrix; else that many, stacked
    part: str = "weight"  # what it is called within the module


@dataclass(frozen=True)
class _Module:
    """The tensors whose names begin alike. What is asked for goes into `used`."""

    tensors: dict[str, TensorEntry]
    name: str
    used: set[str]

    def get(self, part: str, types: frozenset[str], dimensions: tuple[int, ...]) -> TensorEntry | None:
        """A tensor of one of these types and numbers of dimensions, None where there is none."""
        entry = self.tensors.get(f"{self.name}.{part}")
        if entry is None:
            return None
        self.used.add(entry.name)
        if entry.dtype.name not in types:
            raise damaged(
                entry.file, f"type of tensor {entry.name}", seen=entry.dtype.name, wanted=" or ".join(sorted(types))
            )
        if len(entry.shape) not in dimensions or not all(0 < size <= limits.MOST_INTERMEDIATE for size in entry.shape):
            wanted = f"{' or '.join(map(str, dimensions))} dimensions, none empty"
            raise damaged(entry.file, f"shape of tensor {entry.name}", seen=list(entry.shape), wanted=wanted)
        return entry

    def need(self, part: str, types: frozenset[str], dimensions: tuple[int, ...], beside: TensorEntry) -> TensorEntry:
        """The same, an error where there is none."""
        if (entry := self.get(part, types, dimensions)) is None:
            raise damaged(beside.file, f"tensor {self.name}.{part}", seen="none", wanted=f"it beside {beside.name}")
        return entry


def _by_columns(module: _Module, name: str, q: Quantisation) -> _Matrix | None:
    """GPTQ and AWQ: qweight, qzeros and scales have the matrix's columns, or groups of them, as rows. Of modules that
    differ the tensors' shapes tell whose settings are theirs.
    """
    if not name.endswith(".qweight") or (codes := module.get("qweight", _WORDS, (2,))) is None:
        return None
    zeros = module.need("qzeros", _WORDS, (2,), codes)
    scales = module.need("scales", _FLOATS, (2,), codes)
    rows, columns, bits = codes.shape[1], codes.shape[0], q.widths[0]
    if q.method == "gptq":  # of modules that differ the zero points tell how wide theirs are
        bits = next((b for b in q.widths if zeros.shape[1] == -(-rows * b // _WORD_BITS)), bits)
        columns = columns * _WORD_BITS // bits
    else:
        rows = rows * _WORD_BITS // bits
    sizes = [g or columns for _, g in q.blocks]
    group = next((g for g in sizes if scales.shape[0] == -(-columns // g)), sizes[0])
    groups = -(-columns // group)
    _of_shape(scales, groups, rows)
    _of_shape(zeros, groups, -(-rows * bits // _WORD_BITS))
    order = _order(module.get("g_idx", _INDICES, (1,)), group, groups, columns)
    label = f"{q.label} {bits}-bit"
    return _Matrix(
        rows, columns, CodedMatrix(label, q.method, bits, (1, group), codes, scales, zeros, q.zero_offset, order)
    )


def _floats(module: _Module, name: str, q: Quantisation) -> _Matrix | None:
    """8-bit floats and a scale for the whole, a row or a block; of stacked experts, whose tensors have names of their
    own, blocks. Scales that are called so alone, as DeepSeek V4 has them, may belong to 4-bit floats as well.
    """
    kind, part = module.tensors[name].dtype.name, name.rpartition(".")[2]
    own = part == "weight" and f"{module.name}.scale" in module.tensors
    if own and kind in ("I8", "U8"):
        return _nibbles(module, part, "", False, "scale")
    if kind != "F8_E4M3":
        return None
    if own:
        return _bytes(module, "scale", q)
    if part != "weight" and f"{name}_scale_inv" in module.tensors:
        return _stacked_floats(module, part, q)
    if part != "weight":
        return None
    return _bytes(module, "weight_scale_inv" if f"{name}_scale_inv" in module.tensors else "weight_scale", q)


def _stacked_floats(module: _Module, part: str, q: Quantisation) -> _Matrix | None:
    if (codes := module.get(part, _BYTES, (3,))) is None:
        return None
    experts, rows, columns = codes.shape
    scales = module.need(f"{part}_scale_inv", _SCALES, (3,), codes)
    _of_shape(scales, experts, *scales.shape[1:])
    if scales.shape[1:] == (2, 1) and not rows % 2:  # one for all of gate, and one for all of up
        one = rows // 2, columns
    else:
        one = _block_of(replace(scales, shape=scales.shape[1:]), rows, columns, q)
    return _Matrix(rows, columns, CodedMatrix("FP8", "float8", 8, one, codes, scales), experts, part)


def _stacked_nibbles(module: _Module, name: str, _q: Quantisation) -> _Matrix | None:
    """MXFP4 as gpt-oss has it: X_blocks [experts, rows, groups, 16], two codes to a byte, and X_scales."""
    if not name.endswith("_blocks"):
        return None
    part = name.rpartition(".")[2].removesuffix("_blocks")
    if (codes := module.get(f"{part}_blocks", frozenset({"U8"}), (4,))) is None:
        return None
    experts, rows, groups, _ = _of_shape(codes, *codes.shape[:3], _BLOCK // 2).shape
    scales = module.need(f"{part}_scales", frozenset({"U8", "F8_E8M0"}), (3,), codes)
    _of_shape(scales, experts, rows, groups)
    codes = replace(codes, shape=(experts, rows, groups * _BLOCK // 2))
    coded = CodedMatrix("MXFP4", "float4", 4, (1, _BLOCK), codes, scales)
    return _Matrix(rows, groups * _BLOCK, coded, experts, part)


def _by_rows(module: _Module, name: str, q: Quantisation) -> _Matrix | None:
    """compressed-tensors: weight_packed, or bytes as weight, row after row."""
    if name.endswith(".weight_packed"):
        return (
            _nibbles(module, "weight_packed", "weight_global_scale", True)
            if module.tensors[name].dtype.name == "U8"
            else _packed(module, q)
        )
    if not name.endswith(".weight") or module.tensors[name].dtype.name not in _BYTES:
        return None
    return _bytes(module, "weight_scale", q)


def _by_modelopt(module: _Module, name: str, q: Quantisation) -> _Matrix | None:
    """ModelOpt: weight, of bytes or two floats to a byte."""
    if not name.endswith(".weight") or module.tensors[name].dtype.name not in ("U8", "F8_E4M3"):
        return None
    return (
        _nibbles(module, "weight", "weight_scale_2", False)
        if module.tensors[name].dtype.name == "U8"
        else _bytes(module, "weight_scale", q)
    )


_READERS: dict[str, Callable[[_Module, str, Quantisation], _Matrix | None]] = {
    "gptq": _by_columns, "awq": _by_columns, "float8": _floats, "compressed": _by_rows, "modelopt": _by_modelopt,
    "mxfp4": _stacked_nibbles,
}  # fmt: skip


def _bytes(module: _Module, scale: str, q: Quantisation) -> _Matrix | None:
    """A byte for each weight."""
    if (codes := module.get("weight", _BYTES, (2,))) is None:
        return None
    scales = module.need(scale, _SCALES, (0, 1, 2), codes)
    rows, columns = codes.shape
    block = _block_of(scales, rows, columns, q)
    if codes.dtype.name == "F8_E4M3":
        return _Matrix(rows, columns, CodedMatrix("FP8", "float8", 8, block, codes, scales))
    zeros = module.get("weight_zero_point", frozenset({"I8"}), (0, 1, 2))
    if zeros is not None:
        _of_shape(zeros, *scales.shape)
    return _Matrix(rows, columns, CodedMatrix(f"{q.label} 8-bit", "int8", 8, block, codes, scales, zeros))


def _nibbles(
    module: _Module, codes_name: str, of_all: str, divides: bool, scale: str = "weight_scale"
) -> _Matrix | None:
    """4-bit floats (E2M1): MXFP4, whose 32 columns share a power of two, or NVFP4, whose 16 columns share an 8-bit
    float, and all one more.
    """
    if (codes := module.get(codes_name, frozenset({"U8", "I8"}), (2,))) is None:
        return None
    rows, columns = codes.shape[0], 2 * codes.shape[1]
    scales = module.need(scale, frozenset({"U8", "F8_E8M0", "F8_E4M3"}), (2,), codes)
    label, group = ("NVFP4", 16) if scales.dtype.name == "F8_E4M3" else ("MXFP4", 32)
    _of_shape(scales, rows, -(-columns // group))
    whole = module.need(of_all, frozenset({"F32"}), (0, 1), codes) if label == "NVFP4" else None
    if whole is not None and math.prod(whole.shape) != 1:
        raise damaged(whole.file, f"shape of tensor {whole.name}", seen=list(whole.shape), wanted="one number")
    return _Matrix(
        rows, columns, CodedMatrix(label, "float4", 4, (1, group), codes, scales, scale_of_all=whole, divides=divides)
    )


def _packed(module: _Module, q: Quantisation) -> _Matrix | None:
    """Words of codes; how many columns they are is written beside them, as the last word of a row may not be full."""
    if (codes := module.get("weight_packed", _WORDS, (2,))) is None:
        return None
    rows, columns = _written_shape(module.need("weight_shape", _INDICES, (1,), codes))
    widths = q.widths or range(1, 9)  # of narrow matrices several may take as many words
    bits = next((b for b in widths if codes.shape[1] == -(-columns * b // _WORD_BITS)), 0)
    if rows != codes.shape[0] or not bits:
        wanted = f"{format_count(codes.shape[0], 'row')} of codes of at most 8 bits in {codes.shape[1]} words"
        raise damaged(
            codes.file, f"values of tensor {module.name}.weight_shape", seen=f"{rows} and {columns}", wanted=wanted
        )
    scales = module.need("weight_scale", _FLOATS, (0, 1, 2), codes)
    block = _block_of(scales, rows, columns, q)
    groups = -(-columns // block[1])
    zeros = module.get("weight_zero_point", _WORDS, (2,))
    if zeros is not None and block[0] == 1:
        _of_shape(zeros, -(-rows * bits // _WORD_BITS), groups)
    elif zeros is not None:
        raise damaged(zeros.file, f"tensor {zeros.name}", seen="zero points of blocks of rows", wanted="those of rows")
    order = _order(module.get("weight_g_idx", _INDICES, (1,)), block[1], groups, columns)
    return _Matrix(
        rows, columns, CodedMatrix(f"{q.label} {bits}-bit", "rows", bits, block, codes, scales, zeros, order=order)
    )


def _written_shape(entry: TensorEntry) -> tuple[int, int]:
    _of_shape(entry, 2)
    data, width = read_at(entry.file, entry.offset, entry.nbytes), entry.dtype.bytes
    rows, columns = (int.from_bytes(data[at : at + width], "little", signed=True) for at in (0, width))
    return rows, columns


def _block_of(scales: TensorEntry, rows: int, columns: int, q: Quantisation) -> tuple[int, int]:
    """The rows and columns that share one of `scales`."""
    if math.prod(scales.shape) == 1:
        return rows, columns
    if scales.shape in ((rows,), (rows, 1)):
        return 1, columns
    blocks = [(r or rows, c or columns) for r, c in q.blocks]
    for r, c in blocks:
        if scales.shape == (-(-rows // r), -(-columns // c)):
            return r, c
    known = ", ".join(["one for each row", *(f"one for each {r} x {c}" for r, c in blocks)])
    raise damaged(
        scales.file, f"shape of tensor {scales.name}", seen=list(scales.shape), wanted=f"{known} of {rows} x {columns}"
    )


def _of_shape(entry: TensorEntry, *wanted: int) -> TensorEntry:
    if entry.shape != wanted:
        raise damaged(entry.file, f"shape of tensor {entry.name}", seen=list(entry.shape), wanted=str(list(wanted)))
    return entry


def _order(entry: TensorEntry | None, group: int, groups: int, columns: int) -> TensorEntry | None:
    """The tensor that names each column's group, None where columns are in the groups' order."""
    if entry is None:
        return None
    order = column_order(_of_shape(entry, columns), groups)
    return None if np.array_equal(order, np.arange(columns) // group) else entry


def _entry(name: str, matrix: _Matrix, symmetric: bool) -> TensorEntry:
    """The matrix as what it is put together to: a block format that keeps the codes, or floats."""
    coded, shape = matrix.coded, (matrix.rows, matrix.columns)
    stack = (matrix.experts,) if matrix.experts else ()
    if max(shape) > limits.MOST_INTERMEDIATE:
        raise damaged(
            coded.codes.file,
            f"matrix {name}",
            seen=list(shape),
            wanted=f"at most {limits.MOST_INTERMEDIATE} rows and columns",
        )
    dtype = BY_NAME[_format(matrix, symmetric)]
    size = math.prod((*stack, matrix.rows)) * dtype.row_bytes(matrix.columns)
    return TensorEntry(name, dtype, (*stack, *shape), coded.codes.file, coded.codes.offset, size, coded=coded)


def _format(matrix: _Matrix, symmetric: bool) -> str:
    coded, columns = matrix.coded, matrix.columns
    if coded.packing == "float8":
        return "F8_E4M3"
    if coded.packing == "float4":
        return "MXFP4" if coded.label == "MXFP4" and columns % _BLOCK == 0 else "F32"
    whole_blocks = columns % _BLOCK == 0 and (coded.block[1] % _BLOCK == 0 or coded.block[1] >= columns)
    symmetric = symmetric or coded.zeros is None
    if not whole_blocks or coded.order is not None or (coded.bits > 4 and not symmetric):
        return "F32"
    return "Q8_0" if coded.bits > 4 else "Q4_0" if symmetric else "Q4_1"
