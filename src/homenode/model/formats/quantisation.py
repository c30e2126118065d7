"""What a folder says of matrices that were quantised by GPTQ, AWQ, llm-compressor (compressed-tensors), ModelOpt or to
8-bit floats.

The description is in config.json or, as each of these tools wrote it at first, in a file of its own beside it.

How activations, keys and values were rounded is not followed: homenode has its own way of that. Lists of modules left
as they were need no reading either, as the tensors' names tell (coded_matrices.py). Sources: the configurations of the
AutoGPTQ, GPTQModel, AutoAWQ and compressed-tensors projects, of transformers for 8-bit floats, and of NVIDIA's
ModelOpt.
"""

from __future__ import annotations

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
_GPTQ_FORM = ("bits", "group_size", "sym")  # on which it depends what the tensors of a module mean
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
    """How the quantised matrices of a folder lie there."""

    method: str  # "gptq", "awq", "float8", "mxfp4", "compressed" or "modelopt": which tensors make up a matrix
    label: str  # for people
    bits: int = 8
    # Rows and columns that may share a scale, besides one row and all; 0: all there are.
    blocks: tuple[tuple[int, int], ...] = ()
    symmetric: bool = False  # all zero points are the middle of the codes
    zero_offset: int = 0  # added to stored zero points
    widths: tuple[int, ...] = ()  # bits that a packed code may have; none: the tensors tell


def quantisation_of(fields: Fields, beside: Fields | None = None) -> Quantisation | None:
    """How the folder with this config.json is quantised, None where nothing is said of it. UnsupportedError, naming it,
    for what homenode does not read.

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
    if any(own.value(key) != table.value(key) for own in named if own for key in own.names() if key in _GPTQ_FORM):
        raise _unsupported(table, "GPTQ weights with settings of their own for some modules (dynamic)", _ORIGINAL)
    bits = table.integer("bits", minimum=2, maximum=8)
    offset, label = (1, "GPTQ") if form == "gptq" else (0, "GPTQ v2")  # the first form stores a zero point less one
    return Quantisation(
        "gptq", f"{label} {bits}-bit", bits, (_group(table, "group_size"),), table.boolean("sym", False), offset
    )


def _awq(table: Fields) -> Quantisation:
    form, bits = table.text("version", "gemm"), table.integer("bits", table.optional_integer("w_bit") or 4)
    if form.lower() != "gemm" or bits != 4:
        raise _unsupported(
            table,
            f"AWQ weights of {bits} bits in the form {quoted(form)}",
            f"homenode reads 4 bits in the form gemm; else {_ORIGINAL}",
        )
    return Quantisation(
        "awq", "AWQ 4-bit", bits, (_group(table, "group_size" if table.has("group_size") else "q_group_size"),)
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
