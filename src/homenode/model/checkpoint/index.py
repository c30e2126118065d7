"""The one door to model files: a path becomes an opened, checked checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from homenode.errors import CheckpointError, UnsupportedError, UserError
from homenode.host.refusals import named_refusals
from homenode.model.architectures.architecture import Architecture
from homenode.model.architectures.prediction import predicting
from homenode.model.checkpoint.folder import CONFIG, read_folder
from homenode.model.checkpoint.fused_tensors import FusedTensors, split_fused
from homenode.model.checkpoint.gguf_names import GgufNames
from homenode.model.checkpoint.gguf_spec import figures_of, gguf_architecture, num_experts, spec_from_gguf
from homenode.model.checkpoint.matrix_scales import read_matrix_scales, without_scales
from homenode.model.checkpoint.mistral_params import MISTRAL_WEIGHTS, PARAMS, has_mistral_form
from homenode.model.checkpoint.prediction_blocks import BlockTensors, gguf_block, without_prediction_blocks
from homenode.model.checkpoint.prediction_model import read_block
from homenode.model.checkpoint.reranker_files import with_rows
from homenode.model.config.gguf_config import ROPE_FACTORS
from homenode.model.files_read import FilesRead, recorded_files
from homenode.model.formats import limits
from homenode.model.formats.bounded_files import damaged, named_in_errors
from homenode.model.formats.gguf import GgufTensor
from homenode.model.formats.gguf_set import find_gguf, find_mmproj, read_gguf_set
from homenode.model.formats.tensor_parts import slice_of
from homenode.model.spec import Checkpoint, ModelSpec, PredictionSpec, TensorEntry, Tensors
from homenode.units import format_count

_ADAPTER = "adapter_config.json"
_MOST_TENSORS = 2**17 + 3 * limits.MOST_EXPERTS_IN_ALL


@dataclass(frozen=True)
class OpenedAdapter:
    """What changes the weights of a model for those requests that ask for it by `name`. `digest`: of all that it is
    made of.
    """

    name: str
    digest: str


@dataclass
class OpenedCheckpoint:
    """A checkpoint whose headers were read and checked (the protocol is `model.spec.Checkpoint`). No file is
    kept open. `prediction`: its block that predicts further tokens, as a model of its own; `drafting`: what drafts for
    it, where something does. `left_heads`: the first tensor of a block that predicts and cannot be run here. `mmproj`:
    the file that has the tower of a GGUF model, if there is one. `adapters`: that requests may have.
    """

    path: Path
    spec: ModelSpec
    tensors: dict[str, TensorEntry]
    metadata: dict[str, object]
    files: FilesRead = field(default_factory=FilesRead)
    prediction: OpenedCheckpoint | None = None
    left_heads: str = ""
    drafting: OpenedCheckpoint | None = None
    mmproj: Path | None = None
    adapters: tuple[OpenedAdapter, ...] = ()


def adapters_of(checkpoint: Checkpoint) -> tuple[OpenedAdapter, ...]:
    """Return the adapters that stand beside a model, in the order of their numbers."""
    return checkpoint.adapters if isinstance(checkpoint, OpenedCheckpoint) else ()


def drafting_of(checkpoint: Checkpoint) -> OpenedCheckpoint | None:
    """Return what drafts tokens for a model, where something does."""
    return checkpoint.drafting if isinstance(checkpoint, OpenedCheckpoint) else None


def mmproj_of(checkpoint: Checkpoint) -> Path | None:
    """The file that has the tower of a GGUF model, if there is one."""
    return checkpoint.mmproj if isinstance(checkpoint, OpenedCheckpoint) else None


def open_checkpoint(path: Path, mmproj: str | None = None) -> OpenedCheckpoint:
    """Open a Hugging Face folder, one in Mistral's own form, a GGUF file (any part of a split one), or a folder that
    holds exactly one GGUF model.

    Reads headers only, and checks them before anything is allocated by what they say. A folder with several of these is
    read as the first of them. GGUF tensors bear their Hugging Face names; `rope_freqs.weight` is not among them, as its
    values are in `spec.rope.factors`. `mmproj`: the file that has its tower; None: one beside it; off: none.

    Raises CheckpointError for damaged or hostile files, and for one that is replaced meanwhile, UnsupportedError for
    models homenode cannot run, UserError for other paths, HostError when the machine refuses a file call or memory.
    """
    with (
        named_refusals(f"reading the model {path}", CheckpointError),
        named_in_errors(Path(path)),
        recorded_files() as files,
    ):
        opened = _opened(Path(path))
        return replace(_with_tower(opened, mmproj), files=files)


def _with_tower(opened: OpenedCheckpoint, asked: str | None) -> OpenedCheckpoint:
    """A GGUF model with the file that has its tower, where there is one that homenode runs."""
    if opened.path.suffix != ".gguf":
        if asked not in (None, "off"):
            raise UserError(f"--mmproj: the model {opened.path} is a folder, which has its tower in it", param="mmproj")
        return opened
    if (file := find_mmproj(opened.path, asked)) is None:
        return opened
    from homenode.model.pictures.gguf_files import gguf_picture_spec  # of models that see alone

    pictures = gguf_picture_spec(file, opened.metadata, asked=asked is not None)
    spec = opened.spec if pictures is None else replace(opened.spec, pictures=pictures)
    return replace(opened, spec=spec, mmproj=file)


def _opened(path: Path) -> OpenedCheckpoint:
    if path.is_dir():
        if (path / CONFIG).exists() and (any(path.glob("*.safetensors*")) or not any(path.glob("*.gguf"))):
            return _opened_folder(path)
        if has_mistral_form(path) and any(path.glob(MISTRAL_WEIGHTS)):
            return _opened_folder(path)
        if any(path.glob("*.gguf")):
            return _open_gguf(find_gguf(path))
        if (path / _ADAPTER).exists():
            raise UnsupportedError(
                f"{path}: an adapter (LoRA; it has {_ADAPTER} and no {CONFIG}), which changes another model: merge it "
                f"into that, and give the folder of the result"
            )
        raise UserError(
            f"{path}: no model in this folder: wanted {CONFIG} with .safetensors files, {PARAMS} with "
            f"{MISTRAL_WEIGHTS}, or "
            "one .gguf model"
        )
    if not path.exists() and not path.is_symlink():
        raise UserError(
            f"{path}: no such file or folder; give a model folder, a .gguf file or a Hub id such as Qwen/Qwen3-0.6B"
        )
    if path.suffix == ".safetensors" or path.name in (CONFIG, PARAMS):
        raise UserError(f"{path}: one file of a model; give the folder {path.parent} instead")
    return _open_gguf(path)


def _opened_folder(path: Path) -> OpenedCheckpoint:
    found = read_folder(path)
    opened = OpenedCheckpoint(path, found.spec, found.tensors, found.metadata, left_heads=found.left_heads)
    return opened if found.prediction is None else replace(opened, prediction=_block(opened, *found.prediction))


def _block(opened: OpenedCheckpoint, spec: ModelSpec, tensors: dict[str, TensorEntry]) -> OpenedCheckpoint:
    """A block that predicts, of the same files."""
    return OpenedCheckpoint(opened.path, spec, tensors, opened.metadata)


def _open_gguf(path: Path) -> OpenedCheckpoint:
    model = read_gguf_set(path)
    architecture = gguf_architecture(path, model.metadata)
    figures = figures_of(path, model.metadata)
    stored = without_prediction_blocks(figures, model.tensors)
    tensors, fused = _named_entries(stored, num_experts(path, model.metadata), GgufNames(architecture))
    factors = {name: entry for name in ROPE_FACTORS if (entry := tensors.pop(name, None)) is not None}
    spec = spec_from_gguf(path, model.metadata, tensors, factors)
    limits.check_embedding(spec, tensors, path)
    tensors = with_rows(split_fused(tensors, fused, architecture, spec), spec.pooling)
    opened = OpenedCheckpoint(path, spec, architecture.gguf.convert(tensors, spec), dict(model.metadata))
    block = None if spec.pooling is not None else gguf_block(figures, architecture.gguf.name, model.tensors)
    if block is None:
        return opened
    prediction = _gguf_block(opened, architecture, *block, tensors)
    return replace(
        opened, prediction=prediction, left_heads="" if prediction is not None else min(block[1], default="")
    )


def _gguf_block(
    opened: OpenedCheckpoint,
    architecture: Architecture,
    layer: Mapping[str, tuple[Path, GgufTensor]],
    others: Mapping[str, tuple[Path, GgufTensor]],
    prediction: PredictionSpec,
    trunk: Mapping[str, TensorEntry],
) -> OpenedCheckpoint | None:
    """The block that predicts out of the tensors of its layer, and its others; None where it cannot be run."""
    try:
        tensors, fused = _named_entries(layer, num_experts(opened.path, opened.metadata), GgufNames(architecture))
    except CheckpointError:  # the model is the same without
        return None
    tensors |= {
        name: TensorEntry(name, tensor.dtype, tensor.shape, file, tensor.offset, tensor.nbytes)
        for name, (file, tensor) in others.items()
    }

    def convert(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
        return architecture.gguf.convert(split_fused(dict(tensors), fused, predicting(architecture), spec), spec)

    found = read_block(BlockTensors(tensors, prediction), opened.spec, architecture, convert, trunk)
    return None if found is None else _block(opened, *found)


def _named_entries(
    stored: Mapping[str, tuple[Path, GgufTensor]], experts: int, names: GgufNames
) -> tuple[dict[str, TensorEntry], FusedTensors]:
    """The tensors under Hugging Face names, those that stack the matrices of `experts` experts as one entry for each;
    and those that hold several matrices, which are in the first under the names of all, too.
    """
    tensors: dict[str, TensorEntry] = {}
    fused = []
    scales = read_matrix_scales(stored, names)
    for name, (file, tensor) in without_scales(stored, scales).items():
        whole = TensorEntry(name, tensor.dtype, tensor.shape, file, tensor.offset, tensor.nbytes)
        for held, entry in _entries(whole, names, experts, scales.get(name, ())):
            if both := next((each for each in held if each in tensors), None):
                raise damaged(
                    file, f"tensor {name}", seen=f"another tensor that means {both}", wanted="every tensor once"
                )
            tensors |= dict.fromkeys(held, replace(entry, name=held[0]))
            if len(held) > 1:
                fused.append((held, entry))
        if len(tensors) > _MOST_TENSORS:
            raise damaged(
                file, "tensors", seen="more than that, every expert's counted", wanted=f"at most {_MOST_TENSORS}"
            )
    return tensors, fused


def _entries(
    whole: TensorEntry, names: GgufNames, experts: int, scales: tuple[float, ...]
) -> Iterator[tuple[tuple[str, ...], TensorEntry]]:
    """Yield what a tensor holds: each expert's part of a stack, or all of it, with the names that are in it. `scales`:
    what its values are multiplied with, one number or one for each expert; none where they are right.
    """
    stacked = names.expert_names(whole.name, experts)
    if len(scales) > 1 and len(scales) != len(stacked):
        seen, wanted = format_count(len(scales), "number"), "one, or one for each expert"
        raise damaged(whole.file, f"scale of {whole.name}", seen=seen, wanted=wanted)
    if not stacked:
        yield names.names_of(whole.name), replace(whole, times=scales[0] if scales else 1.0)
        return
    if len(whole.shape) < 2 or whole.shape[0] != experts:
        raise damaged(
            whole.file,
            f"shape of {whole.name}",
            seen=list(whole.shape),
            wanted=f"matrices of {format_count(experts, 'expert')}",
        )
    times = scales * experts if len(scales) == 1 else scales or (1.0,) * experts
    for expert, held in enumerate(stacked):
        yield held, replace(slice_of(whole, expert, held[0]), times=times[expert])
