"""The one door to model files: a path becomes an opened, checked checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from homenode.errors import CheckpointError, UnsupportedError, UserError
from homenode.host.refusals import named_refusals
from homenode.model.checkpoint.folder import CONFIG, read_folder
from homenode.model.checkpoint.gguf_names import expert_names, hugging_face_name, permuted_heads
from homenode.model.checkpoint.gguf_spec import (
    INTERLEAVED,
    ROPE_FACTORS,
    gguf_architecture,
    num_experts,
    spec_from_gguf,
)
from homenode.model.formats import limits
from homenode.model.formats.fused_rows import FUSED, with_rows_apart
from homenode.model.formats.gguf import GgufTensor
from homenode.model.formats.gguf_set import GgufSet, find_gguf, read_gguf_set
from homenode.model.formats.reading import damaged
from homenode.model.spec import ModelSpec, TensorEntry
from homenode.units import format_count

_ADAPTER = "adapter_config.json"
_MOST_TENSORS = 2**17 + 3 * limits.MOST_EXPERTS_IN_ALL


@dataclass
class OpenedCheckpoint:
    """A checkpoint whose headers were read and checked (the protocol is `model.spec.Checkpoint`). No file is kept open."""

    path: Path
    spec: ModelSpec
    tensors: dict[str, TensorEntry]
    metadata: dict[str, object]


def open_checkpoint(path: Path) -> OpenedCheckpoint:
    """Open a Hugging Face folder, a GGUF file (any part of a split one), or a folder that holds exactly one GGUF model.

    Reads headers only, and checks them before anything is allocated by what they say. A folder with both kinds is read as a Hugging Face
    folder. GGUF tensors bear their Hugging Face names; `rope_freqs.weight` is not among them, as its values are in `spec.rope.factors`.

    Raises CheckpointError for damaged or hostile files, UnsupportedError for models homenode cannot run, UserError for other paths, HostError when
    the machine refuses a file call or memory.
    """
    with named_refusals(f"reading the model {path}", CheckpointError):
        return _opened(Path(path))


def _opened(path: Path) -> OpenedCheckpoint:
    if path.is_dir():
        if (path / CONFIG).exists() and (any(path.glob("*.safetensors*")) or not any(path.glob("*.gguf"))):
            return OpenedCheckpoint(path, *read_folder(path))
        if any(path.glob("*.gguf")):
            return _open_gguf(find_gguf(path))
        if (path / _ADAPTER).exists():
            raise UnsupportedError(
                f"{path}: an adapter (LoRA; it has {_ADAPTER} and no {CONFIG}), which changes another model: merge it into that, and give the folder of the result"
            )
        raise UserError(f"{path}: no model in this folder: wanted {CONFIG} with .safetensors files, or one .gguf model")
    if not path.exists() and not path.is_symlink():
        raise UserError(
            f"{path}: no such file or folder; give a model folder, a .gguf file or a Hub id such as Qwen/Qwen3-0.6B"
        )
    if path.suffix == ".safetensors" or path.name == CONFIG:
        raise UserError(f"{path}: one file of a model; give the folder {path.parent} instead")
    return _open_gguf(path)


def _open_gguf(path: Path) -> OpenedCheckpoint:
    model = read_gguf_set(path)
    architecture = gguf_architecture(path, model.metadata)
    tensors = _named_entries(model, num_experts(path, model.metadata), architecture)
    factors = {name: entry for name in ROPE_FACTORS if (entry := tensors.pop(name, None)) is not None}
    spec = spec_from_gguf(path, model.metadata, tensors, factors)
    limits.check_embedding(spec, tensors, path)
    if spec.architecture in FUSED:
        tensors = with_rows_apart(tensors, spec)
    if spec.architecture in INTERLEAVED:
        tensors = {name: _interleaved(entry, spec) for name, entry in tensors.items()}
    return OpenedCheckpoint(path, spec, tensors, dict(model.metadata))


def _named_entries(model: GgufSet, experts: int, architecture: str) -> dict[str, TensorEntry]:
    """The tensors under Hugging Face names; those that stack the matrices of `experts` experts as one entry for each."""
    tensors: dict[str, TensorEntry] = {}
    for stored, (file, tensor) in model.tensors.items():
        entries = _stacked_entries(file, tensor, experts, architecture)
        for entry in entries or [_entry(file, tensor, hugging_face_name(stored, architecture))]:
            if entry.name in tensors:
                raise damaged(
                    file, f"tensor {stored}", seen=f"another tensor that means {entry.name}", wanted="every tensor once"
                )
            tensors[entry.name] = entry
        if len(tensors) > _MOST_TENSORS:
            raise damaged(
                file, "tensors", seen="more than that, every expert's counted", wanted=f"at most {_MOST_TENSORS}"
            )
    return tensors


def _entry(file: Path, tensor: GgufTensor, name: str) -> TensorEntry:
    # The gate of the shared expert is a matrix of one row, stored as a vector.
    shape = (
        (1, *tensor.shape) if name.endswith(".shared_expert_gate.weight") and len(tensor.shape) == 1 else tensor.shape
    )
    return TensorEntry(name, tensor.dtype, shape, file, tensor.offset, tensor.nbytes)


def _stacked_entries(file: Path, tensor: GgufTensor, experts: int, architecture: str) -> list[TensorEntry]:
    """The slices of a tensor [experts, rows, columns], none when it is not one of these."""
    names = expert_names(tensor.name, experts, architecture)
    if not names:
        return []
    if len(tensor.shape) != 3 or tensor.shape[0] != experts:
        raise damaged(
            file,
            f"shape of {tensor.name}",
            seen=list(tensor.shape),
            wanted=f"matrices of {format_count(experts, 'expert')}",
        )
    size = tensor.nbytes // experts
    return [
        TensorEntry(name, tensor.dtype, tensor.shape[1:], file, tensor.offset + e * size, size)
        for e, name in enumerate(names)
    ]


def _interleaved(entry: TensorEntry, spec: ModelSpec) -> TensorEntry:
    """`entry` with the number of heads its rows are interleaved in."""
    heads = permuted_heads(entry.name, spec.num_heads, spec.num_kv_heads)
    if heads and (not entry.shape or entry.shape[0] != heads * spec.head_dim):
        wanted = f"{format_count(heads, 'head')} of {format_count(spec.head_dim, 'row')}"
        raise damaged(entry.file, f"shape of {entry.name}", seen=list(entry.shape), wanted=wanted)
    return replace(entry, permuted_heads=heads)
