"""The one door to model files: a path becomes an opened, checked checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from homenode.errors import CheckpointError, UnsupportedError, UserError
from homenode.host.refusals import named_refusals
from homenode.model.checkpoint.folder import CONFIG, read_folder
from homenode.model.checkpoint.gguf_names import GgufNames
from homenode.model.checkpoint.gguf_spec import gguf_architecture, num_experts, spec_from_gguf
from homenode.model.config.gguf_config import ROPE_FACTORS
from homenode.model.formats import limits
from homenode.model.formats.gguf import GgufTensor
from homenode.model.formats.gguf_set import GgufSet, find_gguf, read_gguf_set
from homenode.model.formats.reading import damaged
from homenode.model.spec import ModelSpec, TensorEntry
from homenode.units import format_count

_ADAPTER = "adapter_config.json"
_MOST_TENSORS = 2**17 + 3 * limits.MOST_EXPERTS_IN_ALL


@dataclass
class OpenedCheckpoint:
    """A checkpoint whose headers were read and checked (the protocol is `model.spec.Checkpoint`). No file is
    kept open.
    """

    path: Path
    spec: ModelSpec
    tensors: dict[str, TensorEntry]
    metadata: dict[str, object]


def open_checkpoint(path: Path) -> OpenedCheckpoint:
    """Open a Hugging Face folder, a GGUF file (any part of a split one), or a folder that holds exactly one GGUF model.

    Reads headers only, and checks them before anything is allocated by what they say. A folder with both kinds is read
    as a Hugging Face folder. GGUF tensors bear their Hugging Face names; `rope_freqs.weight` is not among them, as its
    values are in `spec.rope.factors`.

    Raises CheckpointError for damaged or hostile files, UnsupportedError for models homenode cannot run, UserError for
    other paths, HostError when the machine refuses a file call or memory.
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
    tensors = _named_entries(model, num_experts(path, model.metadata), GgufNames(architecture))
    factors = {name: entry for name in ROPE_FACTORS if (entry := tensors.pop(name, None)) is not None}
    spec = spec_from_gguf(path, model.metadata, tensors, factors)
    limits.check_embedding(spec, tensors, path)
    return OpenedCheckpoint(path, spec, architecture.gguf.convert(tensors, spec), dict(model.metadata))


def _named_entries(model: GgufSet, experts: int, names: GgufNames) -> dict[str, TensorEntry]:
    """The tensors under Hugging Face names; those that stack the matrices of `experts` experts as one entry
    for each.
    """
    tensors: dict[str, TensorEntry] = {}
    for stored, (file, tensor) in model.tensors.items():
        for entry in _stacked_entries(file, tensor, names.expert_names(stored, experts)) or [
            TensorEntry(names.hugging_face_name(stored), tensor.dtype, tensor.shape, file, tensor.offset, tensor.nbytes)
        ]:
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


def _stacked_entries(file: Path, tensor: GgufTensor, names: tuple[str, ...]) -> list[TensorEntry]:
    """The slices of a tensor [experts, rows, columns] by these names, none when it is not one of these."""
    experts = len(names)
    if not experts:
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
