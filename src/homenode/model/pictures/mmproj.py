"""GGUF files that have a tower and its projector apart from the text model (`mmproj`), as llama.cpp's converters write
them: read as what a folder says, under the names of one, so that families need not know where they come from.

Such a file says less than a folder: neither which filter scales a picture nor how many tiles or pixels it may have.
What is missing is as the families' published processors have it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from homenode.errors import CheckpointError, UnsupportedError, UserError
from homenode.model.formats import limits
from homenode.model.formats.bounded_files import quoted
from homenode.model.formats.fields import Fields
from homenode.model.formats.gguf import read_gguf
from homenode.model.pictures.classes import PROJECTORS
from homenode.model.pictures.tower import Change
from homenode.model.spec import TensorEntry

_NUMBERED = re.compile(r"^(v\.blk|v\.sam\.blk|v\.deepstack)\.(\d+)\.")
_TYPES = ("clip.vision.projector_type", "clip.projector_type")
_TOKENS = "tokenizer.ggml.tokens"
_NEEDED = ("embedding_length", "block_count", "attention.head_count", "patch_size")
_MOST = {"block_count": limits.MOST_LAYERS}


@dataclass(frozen=True)
class Mmproj:
    """The header of such a file, and that of the text model (`text`) that it is to be run with."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorEntry]
    text: Mapping[str, Any]

    @property
    def vision(self) -> Fields:
        """The figures of the tower."""
        return Fields(self.path, self.metadata, "clip.vision.")

    @property
    def figures(self) -> Fields:
        """The figures of the text model."""
        return Fields(self.path, self.text, f"{self.text.get('general.architecture')}.")

    @property
    def projector(self) -> str:
        """The type of the projector, which says of which family it is."""
        return next((str(self.metadata[key]) for key in _TYPES if key in self.metadata), "")

    def has(self, name: str) -> bool:
        """Return whether there is a tensor of this name."""
        return name in self.tensors

    def token(self, name: str) -> int:
        """The id of a token of the text model by its name. UnsupportedError where it has none."""
        tokens = self.text.get(_TOKENS)
        if isinstance(tokens, list) and name in tokens:
            return tokens.index(name)
        raise UnsupportedError(
            f"{self.path}: it is of a model that has a token {quoted(name)} for images, which the text model has not; "
            f"give the file that belongs to it"
        )

    def tower(self, **names: str) -> dict[str, Any]:
        """Figures that all towers have, by the names that a config.json has for them: `hidden_size`, and as `names`
        says, or else, those of lengths and counts. CheckpointError where one that each needs is missing.
        """
        vision = self.vision
        usual = {
            "embedding_length": "hidden_size",
            "feed_forward_length": "intermediate_size",
            "block_count": "num_hidden_layers",
            "attention.head_count": "num_attention_heads",
            "patch_size": "patch_size",
            "image_size": "image_size",
        }
        found: dict[str, Any] = {
            names.get(own, own): vision.integer(key, maximum=_MOST.get(key, 2**31 - 1))
            for key, own in usual.items()
            if key in _NEEDED or vision.has(key)
        }
        if vision.has("attention.layer_norm_epsilon"):
            found["layer_norm_eps"] = vision.number("attention.layer_norm_epsilon")
        found["hidden_act"] = "silu" if self.metadata.get("clip.use_silu") else usual_activation(self.metadata)
        return found

    def processor(self, **values: Any) -> dict[str, Any]:
        """Fields of an image processor: means, deviations, and these."""
        vision = self.vision
        said = {key: list(vision.numbers(key, above=-1e9)) for key in ("image_mean", "image_std") if vision.has(key)}
        return {**said, **values}


def usual_activation(metadata: Mapping[str, Any]) -> str:
    """The activation of a tower that says nothing of silu: the quick form of gelu, unless it names gelu."""
    return "gelu" if metadata.get("clip.use_gelu") else "quick_gelu"


@dataclass(frozen=True)
class GgufTower:
    """How a family's files are. `config`: config.json, the fields of the image processor, and those of
    processor_config.json. `names`: of tensors, {n} being the number of a block, to those of folders; `changes`: what
    becomes of the values of those that end so in a folder; `permuted`: how the names of matrices end whose heads'
    halves are interleaved in the file.
    """

    config: Callable[[Mmproj], tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]
    names: Callable[[Mmproj], Mapping[str, str]]
    changes: Mapping[str, Change] = field(default_factory=dict)
    permuted: tuple[str, ...] = ()


def read_mmproj(path: Path, text: Mapping[str, Any]) -> Mmproj:
    """The header of a file. `text`: key-value pairs of the text model. CheckpointError for a damaged file,
    UnsupportedError for one that has no tower of a known family.
    """
    file = read_gguf(path)
    tensors = {
        name: TensorEntry(name, each.dtype, each.shape, path, each.offset, each.nbytes)
        for name, each in file.tensors.items()
    }
    found = Mmproj(path, file.metadata, tensors, text)
    if not found.projector and file.metadata.get("general.type") != "mmproj":
        raise UnsupportedError(f"{path}: no file of a tower and its projector (mmproj): it has no clip.projector_type")
    if found.projector not in PROJECTORS:
        known = ", ".join(PROJECTORS)
        raise UnsupportedError(
            f"{path}: a projector of the type {quoted(found.projector)} is not supported; homenode runs {known}"
        )
    _check_width(found)
    return found


def _check_width(file: Mmproj) -> None:
    """UserError for a projector whose rows are not as wide as those of the text model."""
    wide = file.figures.integer("embedding_length")
    made = file.vision.optional_integer("projection_dim", minimum=0) or wide  # 0: the file does not say
    if made != wide:
        raise UserError(
            f"--mmproj {file.path}: its projector makes rows of {made} columns, and the text model has {wide}; give "
            "the file that belongs to the text model",
            param="mmproj",
        )


def family_of(file: Mmproj) -> str:
    """The name of the family that a file is of."""
    return PROJECTORS[file.projector]


def folder_tensors(file: Mmproj, tower: GgufTower) -> dict[str, TensorEntry]:
    """The tensors of a file under the names of a folder; those that a folder has not are left out."""
    names, found = tower.names(file), {}
    heads = file.vision.integer("attention.head_count", 1)
    for name, entry in file.tensors.items():
        if (own := _folder_name(name, names)) is not None:
            permuted = heads if own.endswith(tower.permuted) else 0
            found[own] = replace(entry, name=own, permuted_heads=permuted)
    if not found:
        raise CheckpointError(f"{file.path}: none of its tensors is one of a tower of {family_of(file)}")
    return _with_ordered_mlp(found)


def _folder_name(name: str, names: Mapping[str, str]) -> str | None:
    numbered = _NUMBERED.match(name)
    number = "" if numbered is None else numbered[2]
    form = name if numbered is None else f"{numbered[1]}.{{n}}.{name[numbered.end() :]}"
    for wanted in dict.fromkeys((name, form)):
        cut = len(wanted)
        while cut > 0:
            if (own := names.get(wanted[:cut])) is not None:
                return own.replace("{n}", number) + wanted[cut:]
            cut = wanted.rfind(".", 0, cut)
    return None


def _with_ordered_mlp(tensors: dict[str, TensorEntry]) -> dict[str, TensorEntry]:
    """Older converters have exchanged the names of an MLP's two matrices: the shapes say so."""
    for name, first in list(tensors.items()):
        second = tensors.get(name.replace("fc1", "fc2")) if name.endswith("mlp.fc1.weight") else None
        norm = tensors.get(name.replace("mlp.fc1", "layer_norm2"))
        if second is None or norm is None or first.shape[1] == norm.shape[0] != second.shape[1]:
            continue
        if second.shape[1] == norm.shape[0] != first.shape[1]:
            for end in ("weight", "bias"):
                one, other = (name.replace("fc1.weight", f"{part}.{end}") for part in ("fc1", "fc2"))
                if one in tensors and other in tensors:
                    tensors[one], tensors[other] = tensors[other], tensors[one]
    return tensors
