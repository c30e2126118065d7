"""Hugging Face folders, and those in Mistral's own form: which weight files belong to the model, and what its JSON
files say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from homenode.errors import CheckpointError, UnsupportedError
from homenode.model.architectures.registry import architecture_of
from homenode.model.checkpoint.folder_spec import folder_architecture, spec_from_config
from homenode.model.checkpoint.folder_text import holds_text_of, text_config, text_tensors
from homenode.model.checkpoint.mistral_params import MISTRAL_WEIGHTS, PARAMS, config_of_params, has_mistral_form
from homenode.model.checkpoint.mistral_tensors import renamed_tensors, with_ordered_heads
from homenode.model.checkpoint.output_matrix import repeats_embedding
from homenode.model.checkpoint.pooling_files import base_model_tensors, read_pooling
from homenode.model.checkpoint.prediction_blocks import folder_block, part_prediction_layers
from homenode.model.checkpoint.prediction_model import Block, read_block
from homenode.model.checkpoint.reranker_files import named_reranker, with_rows
from homenode.model.config.folder_config import FolderConfig
from homenode.model.formats import limits
from homenode.model.formats.bounded_files import damaged, inside, is_there, quoted, read_json
from homenode.model.formats.coded_matrices import with_coded_matrices
from homenode.model.formats.fields import Fields
from homenode.model.formats.module_names import renamed_modules
from homenode.model.formats.quantisation import QUANTISATION_FILES, quantisation_of
from homenode.model.formats.safetensors import read_safetensors
from homenode.model.pictures.family import PictureConfig
from homenode.model.pictures.registry import family_of_class
from homenode.model.pooling import PoolingSpec
from homenode.model.spec import ModelSpec, PictureSpec, TensorEntry
from homenode.units import format_count

CONFIG, GENERATION, INDEX, SINGLE = (
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "model.safetensors",
)
MISTRAL_INDEX = "consolidated.safetensors.index.json"
_MOST_JSON_BYTES = 2**24
_MOST_INDEX_BYTES = 2**26
_MOST_SHARDS = 10_000
# How the names of tensors end that only quantised folders have.
_OF_CODED_MATRICES = (".qweight", ".qzeros", ".weight_packed", ".weight_scale", "_scale_inv", "_proj_blocks")
_OF_TOWER = re.compile(r"(?:^|\.)(?:visual|vision_tower|vision_model|vision_encoder|sam_model|vpm)\.")
_PLAIN_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_JSON_FILES = (CONFIG, GENERATION, "tokenizer_config.json", "special_tokens_map.json", "chat_template.json")


@dataclass(frozen=True)
class FolderModel:
    """Figures, tensors and the JSON files (by file name; params.json as the config.json that it stands for) of a model;
    and the figures and tensors of its block that predicts further tokens, if it has one. `left_heads`: the first tensor
    of such a block that is of another kind, and left.
    """

    spec: ModelSpec
    tensors: dict[str, TensorEntry]
    metadata: dict[str, object]
    prediction: Block | None
    left_heads: str = ""


def read_folder(folder: Path) -> FolderModel:
    """The model in `folder`. Headers only; tokenizer.json is left alone."""
    file, config = _described(folder)  # first: the most telling thing to be missing
    metadata: dict[str, object] = {CONFIG: config}
    for name in _JSON_FILES[1:]:
        if is_there(folder / name):
            metadata[name] = read_json(folder / name, _MOST_JSON_BYTES)
    whole = None
    if text := holds_text_of(file, config):
        whole, config = config, text_config(file, config, text)
    try:
        tensors, block, has_tower = _read_model(Fields(file, config), whole)
    except CheckpointError:
        # An architecture we do not run is the better answer to a folder we cannot read.
        _spec(Fields(file, config), metadata, {})
        raise
    base = limits.EMBEDDING not in tensors
    tensors = base_model_tensors(tensors)
    spec = _spec(Fields(file, config), metadata, tensors)
    if file.name == PARAMS:
        tensors = with_ordered_heads(tensors, spec)
    limits.check_embedding(spec, tensors, folder)
    pooling, head = read_pooling(folder, spec, tensors)
    if pooling is None and spec.pooling is None:
        pooling = named_reranker(folder, Fields(file, config), spec, tensors)
    if pooling is None and spec.pooling is None and base:
        pooling = PoolingSpec("last", spec.hidden_size)  # nothing here makes text of its vectors
    pictures = _picture_spec(file, whole) if whole is not None and has_tower else None
    spec = replace(spec, pooling=pooling or spec.pooling, pictures=pictures)
    if pictures is not None and pictures.unscaled_logits:
        spec = replace(spec, logits_scale=1.0)
    tensors = with_rows(tensors, spec.pooling)
    architecture = architecture_of(spec.architecture)
    convert, found = architecture.folder.convert, folder_block(block, spec.num_layers)
    if found is None or spec.pooling is not None:
        prediction = None
    else:
        prediction = read_block(found, spec, architecture, convert, tensors)
    left = min(block, default="") if prediction is None else ""
    return FolderModel(spec, convert(tensors, spec) | head, metadata, prediction, left)


def spec_without_weights(folder: Path) -> ModelSpec | None:
    """The figures that the JSON files of `folder` tell, whose weights need not be there; None where they depend on
    tensors.

    UnsupportedError where homenode does not run the model; CheckpointError where config.json cannot be read.
    """
    file, config = _described(folder)
    if text := holds_text_of(file, config):
        config = text_config(file, config, text)
    with suppress(CheckpointError):  # what depends on tensors is judged when they are there
        return _spec(Fields(file, config), {}, {})
    return None


def _described(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The file that describes the model, and what it says in the words of a config.json."""
    if not has_mistral_form(folder):
        return folder / CONFIG, read_json(folder / CONFIG, _MOST_JSON_BYTES)
    file = folder / PARAMS
    return file, config_of_params(Fields(file, read_json(file, _MOST_JSON_BYTES)))


def _read_model(
    config: Fields, whole: dict[str, Any] | None
) -> tuple[dict[str, TensorEntry], dict[str, TensorEntry], bool]:
    """The tensors of the text model, its quantised matrices put together, those of blocks that predict, and whether
    there are those of a tower beside them. `whole`:
    what describes a model that sees or hears, too, in which it is.
    """
    folder, architecture = config.path.parent, folder_architecture(config)
    of_mistral = config.path.name == PARAMS
    tensors = renamed_tensors(_read_mistral_tensors(folder), architecture.name) if of_mistral else _read_tensors(folder)
    has_tower = has_tensors_of_tower(tensors)
    if whole is not None:
        tensors = text_tensors(config.path, whole, tensors)
    if not of_mistral:
        tensors = renamed_modules(tensors, architecture.folder.modules)
    tensors, block = part_prediction_layers(tensors, config)
    quantisation = quantisation_of(config, _quantisation_file(folder, tensors))
    if quantisation is not None:
        with suppress(CheckpointError, UnsupportedError):  # the model is the same without
            coded_block = with_coded_matrices(block, quantisation)
            return with_coded_matrices(tensors, quantisation), coded_block, has_tower
        return with_coded_matrices(tensors, quantisation), {}, has_tower
    if coded := next((name for name in tensors if name.endswith(_OF_CODED_MATRICES)), None):
        raise damaged(
            folder,
            "quantisation",
            seen=f"quantised weights ({coded}), and nothing that says how",
            wanted=f"quantization_config in {config.path.name}, or one of {', '.join(QUANTISATION_FILES)}",
            do="fetch that file, too",
        )
    return tensors, block, has_tower


def _spec(config: Fields, metadata: dict[str, object], tensors: dict[str, TensorEntry]) -> ModelSpec:
    generation: Any = metadata.get(GENERATION, {})
    return spec_from_config(
        FolderConfig(
            config,
            Fields(config.path.parent / GENERATION, generation),
            has_output=limits.OUTPUT in tensors,
            storage=limits.main_storage(tensors),
            output_is_embedding=config.value("tie_word_embeddings") is not True or repeats_embedding(tensors),
            tokenizer_names_eos=_names_eos(metadata),
        )
    )


def _names_eos(metadata: dict[str, object]) -> bool:
    """Return whether the tokenizer's files name the token that ends a text, as its name or as an object
    that holds it.
    """
    files = (metadata.get(name) for name in ("tokenizer_config.json", "special_tokens_map.json"))
    return any(isinstance(file, dict) and file.get("eos_token") for file in files)


def _quantisation_file(folder: Path, tensors: dict[str, TensorEntry]) -> Fields | None:
    """Return what a file beside config.json says of the quantisation. A folder of plain floats is not asked: such a
    file is a leftover there.
    """
    if all(entry.dtype.name in _PLAIN_FLOATS for entry in tensors.values()):
        return None
    found = next((folder / name for name in QUANTISATION_FILES if is_there(folder / name)), None)
    return None if found is None else Fields(found, read_json(found, _MOST_JSON_BYTES))


def _picture_spec(file: Path, config: dict[str, Any]) -> PictureSpec | None:
    """How pictures enter the text model of this config.json; None where homenode knows no such family."""
    family = family_of_class(str(config["architectures"][0]))
    return None if family is None else family.spec(PictureConfig(file, config))


def has_tensors_of_tower(names: Iterable[str]) -> bool:
    """Return whether some of the tensors of a folder are of what sees, which those of a text alone lack."""
    return any(_OF_TOWER.search(name) for name in names)


def read_whole_tensors(folder: Path) -> dict[str, TensorEntry]:
    """All tensors of the model in `folder`, by the names they have there, those of its tower among them."""
    return _read_tensors(folder)


def _read_tensors(folder: Path) -> dict[str, TensorEntry]:
    if is_there(folder / SINGLE):
        return read_safetensors(folder / SINGLE)
    if is_there(folder / INDEX):
        return _read_indexed(folder, folder / INDEX)
    files = set(folder.glob("*.safetensors"))
    # Some folders also hold the model in Mistral's own form.
    return _read_all(folder, files - set(folder.glob(MISTRAL_WEIGHTS)) or files)


def _read_mistral_tensors(folder: Path) -> dict[str, TensorEntry]:
    if is_there(folder / MISTRAL_INDEX):
        return _read_indexed(folder, folder / MISTRAL_INDEX)
    return _read_all(folder, set(folder.glob(MISTRAL_WEIGHTS)))


def _read_all(folder: Path, files: set[Path]) -> dict[str, TensorEntry]:
    """The tensors of files that no index lists."""
    if not files:
        raise _no_weights(folder)
    if len(files) > _MOST_SHARDS:
        raise damaged(folder, "weight files", seen=len(files), wanted=f"at most {_MOST_SHARDS}")
    tensors: dict[str, TensorEntry] = {}
    for file in sorted(files):
        for name, entry in read_safetensors(file).items():
            if name in tensors:
                raise damaged(
                    file,
                    f"tensor {name}",
                    seen=f"it also in {tensors[name].file.name}",
                    wanted="every tensor in one file",
                )
            tensors[name] = entry
    return tensors


def _read_indexed(folder: Path, index: Path) -> dict[str, TensorEntry]:
    """The tensors of a sharded model: the index says which shards belong to it, and these which tensors they have. What
    the index says of a tensor counts where several shards have one of its name: others name tensors that were left out
    when the model was saved (a tied output matrix, buffers), or the wrong shard.
    """
    listed = read_json(index, _MOST_INDEX_BYTES).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise damaged(index, "weight_map", seen=type(listed).__name__, wanted="an object of tensor and file names")
    names = sorted({_file_name(index, name) for name in listed.values()})
    if len(names) > _MOST_SHARDS:
        raise damaged(index, "weight_map", seen=format_count(len(names), "file"), wanted=f"at most {_MOST_SHARDS}")
    paths = {name: inside(folder, name, index) for name in names}
    if missing := [name for name, path in paths.items() if not is_there(path)]:
        seen = f"{len(paths) - len(missing)} of {format_count(len(paths), 'shard')}, without {', '.join(missing[:5])}"
        raise damaged(index, "shards", seen=seen, wanted="every file it names", do="fetch the missing files")
    found: dict[str, dict[Path, TensorEntry]] = {}  # by tensor, and by shard
    for path in dict.fromkeys(paths.values()):
        for tensor, entry in read_safetensors(path).items():
            found.setdefault(tensor, {})[path] = entry
    return {tensor: _chosen(index, tensor, some, paths.get(listed.get(tensor, ""))) for tensor, some in found.items()}


def _file_name(index: Path, name: object) -> str:
    if not isinstance(name, str):
        raise damaged(index, "weight_map", seen=quoted(name), wanted="the name of a file for every tensor")
    return name


def _chosen(index: Path, tensor: str, entries: dict[Path, TensorEntry], listed: Path | None) -> TensorEntry:
    """Return of the shards that have a tensor the only one, or that which the index names."""
    if len(entries) > 1 and listed not in entries:
        raise damaged(
            index,
            f"tensor {quoted(tensor)}",
            seen=f"one in each of {', '.join(sorted(path.name for path in entries))}",
            wanted="one of these files named for it",
        )
    return entries[listed] if listed in entries else next(iter(entries.values()))


def _no_weights(folder: Path) -> CheckpointError | UnsupportedError:
    if pickled := sorted(file.name for pattern in ("*.bin", "*.pth", "*.pt") for file in folder.glob(pattern)):
        return UnsupportedError(
            f"{folder}: weights only in {pickled[0]}; homenode reads no pickled files, as they can run code: convert "
            f"the model to safetensors"
        )
    return damaged(
        folder, "weights", seen="no .safetensors file", wanted=f"{SINGLE}, {INDEX} with its shards, or a .gguf file"
    )
