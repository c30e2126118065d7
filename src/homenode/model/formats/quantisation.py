"""Descriptions in a folder of matrices that were quantised by GPTQ, AWQ, AutoRound, llm-compressor
(compressed-tensors), ModelOpt or to 8-bit floats.

The description is in config.json or, as each of these tools wrote it at first, in a file of its own beside it.

How activations, keys and values were rounded is not followed: homenode has its own way of that. Lists of modules left
as they were need no reading either, as the tensors' names tell, and of modules with settings of their own the tensors'
shapes tell which are theirs (coded_matrices.py). Sources: the configurations of the AutoGPTQ, GPTQModel, AutoAWQ,
AutoRound and compressed-tensors projects, of transformers for 8-bit floats, and of NVIDIA's ModelOpt.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from homenode.errors import UnsupportedError
from homenode.model.formats import limits
from homenode.model.formats.bounded_files import quoted
from homenode.model.formats.fields import Fields

# Files that hold nothing but the description of the quantisation, by the tools that write them; the first one there is
# read.
QUANTISATION_FILES = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")
_AWQ_KEYS = ("zero_point", "w_bit", "q_group_size", "version")  # that files of GPTQ lack
# How AutoRound stores codes, by what it calls that: as GPTQ does in its first form, or in its second, or as AWQ does.
_AUTO_ROUND_PACKINGS = {
    **dict.fromkeys(("", "auto", "auto_round:gptq", "auto_round:auto_gptq"), "gptq"),
    **dict.fromkeys(("auto_round", "auto_round:gptqmodel"), "gptq_v2"),
    **dict.fromkeys(("auto_round:awq", "auto_round:auto_awq"), "awq"),
}
_AUTO_ROUND_KERNELS = (":exllamav2", ":triton", ":tritonv2", ":cuda", ":marlin", ":gemm")
_UNQUANTISED_BITS = 16  # from here on AutoRound means that a module was left as it was
_FLOATS = ("e4m3", "e4m3fn", "float8_e4m3fn")  # spellings of one kind of 8-bit floats
_ORIGINAL = "use the original model (with --quantize, if it is too large) or a GGUF of it"
_COMPRESSED_FORMATS = (
    "dense",
    "naive-quantized",
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mixed-precision",
)


@dataclass(frozen=True)
class Quantisation:
    """The form in which the quantised matrices of a folder lie there."""

    method: str  # "gptq", "awq", "float8", "mxfp4", "compressed" or "modelopt": which tensors make up a matrix
    label: str  # for people
    # Rows and columns that may share a scale, besides one row and all; 0: all there are.
    blocks: tuple[tuple[int, int], ...] = ()
    symmetric: bool = False  # all zero points are the middle of the codes
    zero_offset: int = 0  # added to stored zero points
    widths: tuple[int, ...] = ()  # bits that a packed code may have; none: the tensors tell


def quantisation_of(fields: Fields, beside: Fields | None = None) -> Quantisation | None:
    """Return how the folder with this config.json is quantised, None where nothing is said of it. UnsupportedError,
    naming it, for what homenode does not read.

    `beside`: the content of the first of `QUANTISATION_FILES` that the folder has. config.json wins, as its tensors
    were written with it.
    """
    if (mlx := fields.table("quantization")) is not None and mlx.has("bits"):
        raise _unsupported(mlx, "weights quantised by MLX", _ORIGINAL)
    table = fields.table("quantization_config") or fields.table("compression_config") or beside
    if table is None:
        return None
    table = table.table("quantization") or table  # ModelOpt has it one level deeper, beside its own name and version
    method = _method(table, alone=table is beside)
    if method not in _METHODS:
        raise _unsupported(
            table, f"weights quantised by {quoted(method)}", f"homenode reads {', '.join(_METHODS)}; else {_ORIGINAL}"
        )
    return _METHODS[method](table)


def _method(table: Fields, *, alone: bool) -> str:
    """The tool that quantised. Where it is not named the keys tell it; `alone`: in a file of its own, as GPTQ and AWQ
    wrote it without a name.
    """
    if table.has("quant_method"):
        return table.text("quant_method").lower()
    if table.has("quant_algo"):
        return "modelopt"
    if not alone:
        return "unnamed"
    if any(table.has(key) for key in _AWQ_KEYS):
        return "awq"
    return "gptq" if table.has("bits") else "unnamed"


def _gptq(table: Fields) -> Quantisation:
    form = "marlin" if table.boolean("is_marlin_format", False) else table.text("checkpoint_format", "gptq")
    if form not in ("gptq", "gptq_v2"):
        raise _unsupported(
            table, f"GPTQ weights in the form {quoted(form)}", f"homenode reads gptq and gptq_v2; else {_ORIGINAL}"
        )
    modules = table.table("dynamic") or Fields(table.path, {})
    named = (modules.optional_table(name) for name in modules.names() if not name.startswith("-:"))
    label = "GPTQ" if form == "gptq" else "GPTQ v2"
    return _with_modules(label, form, table, [own for own in named if own is not None], symmetric=False)


def _awq(table: Fields) -> Quantisation:
    form, bits = table.text("version", "gemm"), table.integer("bits", table.optional_integer("w_bit") or 4)
    if form.lower() != "gemm" or bits != 4:
        raise _unsupported(
            table,
            f"AWQ weights of {bits} bits in the form {quoted(form)}",
            f"homenode reads 4 bits in the form gemm; else {_ORIGINAL}",
        )
    group = _group(table, "group_size" if table.has("group_size") else "q_group_size")
    return Quantisation("awq", "AWQ", (group,), widths=(bits,))


def _auto_round(table: Fields) -> Quantisation:
    backend = re.sub("^auto[-_]?round", "auto_round", table.text("backend"))  # where older files have it, with a kernel
    packing = table.text("packing_format") or (backend if backend.startswith("auto_round") else "")
    kernel = next((end for end in _AUTO_ROUND_KERNELS if packing.endswith(end)), "")
    form, kind = _AUTO_ROUND_PACKINGS.get(packing.removesuffix(kernel)), table.text("data_type", "int")
    if form is None or kind != "int":
        what = f"AutoRound weights in the form {quoted(packing)}, of the kind {quoted(kind)},"
        raise _unsupported(table, what, f"homenode reads int in the forms of GPTQ and AWQ; else {_ORIGINAL}")
    modules = table.table("extra_config") or Fields(table.path, {})
    named = [own for name in modules.names() if (own := modules.optional_table(name)) is not None]
    quantised = [own for own in named if own.integer("bits", 2, maximum=32) < _UNQUANTISED_BITS]
    found = _with_modules("AutoRound", form, table, quantised, symmetric=True)
    if form == "awq" and found.widths != (4,):
        what = f"AutoRound weights of {' and '.join(map(str, found.widths))} bits in the form {quoted(packing)}"
        raise _unsupported(table, what, f"homenode reads 4 bits in that form; else {_ORIGINAL}")
    return found


def _with_modules(label: str, form: str, table: Fields, own: list[Fields], *, symmetric: bool) -> Quantisation:
    """Matrices stored as `form` says, with the settings of `table` or those that modules have of their `own`.
    `symmetric`: whether zero points are the middle of the codes where the file does not say.
    """
    bits, symmetric = table.integer("bits", minimum=2, maximum=8), table.boolean("sym", symmetric)
    widths = [bits, *(each.integer("bits", bits, minimum=2, maximum=8) for each in own)]
    blocks = [_group(each, "group_size") for each in (table, *own) if each is table or each.has("group_size")]
    return Quantisation(
        "awq" if form == "awq" else "gptq",
        label,
        tuple(dict.fromkeys(blocks)),
        all([symmetric, *(each.boolean("sym", symmetric) for each in own)]),
        1 if form == "gptq" else 0,  # that form stores a zero point less one
        tuple(dict.fromkeys(widths)),
    )


def _float8(table: Fields) -> Quantisation:
    kind = table.text("fmt", _FLOATS[0])
    if kind not in _FLOATS:
        raise _unsupported(table, f"8-bit floats of the kind {quoted(kind)}", f"homenode reads e4m3; else {_ORIGINAL}")
    return Quantisation("float8", "FP8", blocks=_block(table, "weight_block_size"))


def _mxfp4(_table: Fields) -> Quantisation:
    return Quantisation("mxfp4", "MXFP4")


def _modelopt(table: Fields) -> Quantisation:
    kinds = {table.text("quant_algo", "unnamed")}
    if kinds == {"MIXED_PRECISION"}:  # a kind for each module; tensors tell which theirs is
        modules = table.table("quantized_layers") or Fields(table.path, {})
        told = filter(None, map(modules.optional_table, modules.names()))
        kinds = {module.text("quant_algo", "unnamed") for module in told} or kinds
    if other := kinds - {"FP8", "NVFP4"}:
        known = f"homenode reads FP8 and NVFP4; else {_ORIGINAL}"
        raise _unsupported(table, f"ModelOpt weights of the kind {quoted(min(other))}", known)
    return Quantisation("modelopt", "ModelOpt")


def _compressed(table: Fields) -> Quantisation:
    form = table.text("format", "dense")
    if form not in _COMPRESSED_FORMATS:
        known = f"homenode reads {', '.join(_COMPRESSED_FORMATS)}; else {_ORIGINAL}"
        raise _unsupported(table, f"compressed-tensors in the form {quoted(form)}", known)
    sparsity, transform = table.table("sparsity_config"), table.table("transform_config")
    if sparsity is not None and sparsity.text("format", "dense") != "dense":
        raise _unsupported(table, "compressed-tensors with sparsity", _ORIGINAL)
    if transform is not None and transform.has("config_groups"):
        raise _unsupported(table, "compressed-tensors with transforms of the activations", _ORIGINAL)
    blocks: dict[tuple[int, int], None] = {}
    widths: dict[int, None] = {}
    groups = table.table("config_groups") or Fields(table.path, {})
    for name in groups.names():
        group = groups.table(name)
        weights = group.table("weights") if group else None
        if weights is not None:
            blocks |= dict.fromkeys((_group(weights, "group_size"), *_block(weights, "block_structure")))
            if (bits := weights.integer("num_bits", 0, minimum=0)) in range(1, 9):
                widths[bits] = None
    return Quantisation("compressed", "compressed-tensors", blocks=tuple(blocks), widths=tuple(widths))


_METHODS: dict[str, Callable[[Fields], Quantisation]] = {
    "gptq": _gptq, "awq": _awq, "fp8": _float8, "fbgemm_fp8": _float8, "mxfp4": _mxfp4,
    "compressed-tensors": _compressed, "modelopt": _modelopt, "modelopt_fp4": _modelopt,
    "auto-round": _auto_round, "auto_round": _auto_round, "intel/auto-round": _auto_round,
}  # fmt: skip


def _group(table: Fields, key: str) -> tuple[int, int]:
    """Columns of a row that share a scale; -1, and nothing, mean all."""
    return 1, max(table.integer(key, -1, minimum=-1, maximum=limits.MOST_INTERMEDIATE), 0)


def _block(table: Fields, key: str) -> tuple[tuple[int, int], ...]:
    sizes = table.integers(key)
    if sizes and (len(sizes) != 2 or not all(0 < size <= limits.MOST_INTERMEDIATE for size in sizes)):
        raise table.wrong(key, list(sizes), "the rows and the columns of a block")
    return ((sizes[0], sizes[1]),) if sizes else ()


def _unsupported(table: Fields, what: str, instead: str) -> UnsupportedError:
    return UnsupportedError(f"{table.path}: {what} are not supported in safetensors; {instead}")
