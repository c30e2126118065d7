"""Blocks that predict further tokens (multi-token prediction, MTP, or NextN) in files: known by their tensors' names,
parted from the model, which computes the same without, and named as a model of one layer.

A model may have several, each for one token further ahead: the first is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from homenode.errors import UnsupportedError
from homenode.model.architectures.prediction import EMBEDDING, HEAD, JOIN, OUTPUT_NORM, ROW_NORM, TOKEN_NORM
from homenode.model.config.gguf_config import trunk_layers
from homenode.model.formats import limits
from homenode.model.formats.fields import Fields
from homenode.model.spec import PredictionSpec, TensorEntry

_GGUF_BLOCK = re.compile(r"blk\.(0|[1-9][0-9]{0,4})\.(.+)")
_OF_GGUF = "nextn."  # in front of the names of what such a block has besides a layer's tensors
_NAMED = re.compile(r"(model\.)?mtp(_[a-z]+)*\..+")
_FOLDER_LAYER = re.compile(r"model\.layers\.(0|[1-9][0-9]{0,4})\.(.+)")
_OF_FOLDER = "eh_proj."  # the matrix that only such a block has
_LAYER = "model.layers.0."
_PRE_MLP = "pre_mlp_layernorm", "post_attention_layernorm"  # what blocks of MiMo V2 call it, and its layers do
_Tensor = TypeVar("_Tensor")


_USUAL = PredictionSpec()


@dataclass(frozen=True)
class _Style:
    """The names in folders of one kind of block. `layer`: what its layer's tensors begin with; `others`: what of it the
    other tensors are called, and what they are called here. `spec`: how it reads rows.
    """

    layer: str
    others: Mapping[str, str]
    spec: PredictionSpec = _USUAL


_DEEPSEEK = {
    "enorm": TOKEN_NORM,
    "hnorm": ROW_NORM,
    "eh_proj": JOIN,
    "shared_head.norm": OUTPUT_NORM,
    "final_layernorm": OUTPUT_NORM,
    "embed_tokens": EMBEDDING,
    "shared_head.head": HEAD,
}


def _behind(prefix: str, names: Mapping[str, str]) -> dict[str, str]:
    return {f"{prefix}{name}.weight": ours for name, ours in names.items()}


_LAST = PredictionSpec(hands_normed=True)
# {layer} is the number behind that of the model's last layer.
STYLES = (
    _Style("model.layers.{layer}.", _behind("model.layers.{layer}.", _DEEPSEEK)),
    _Style(
        "mtp.layers.0.",
        _behind(
            "mtp.",
            {"pre_fc_norm_embedding": TOKEN_NORM, "pre_fc_norm_hidden": ROW_NORM, "fc": JOIN, "norm": OUTPUT_NORM},
        ),
        _LAST,
    ),
    _Style("model.mtp.layers.0.", _behind("model.mtp.layers.0.", _DEEPSEEK), _LAST),
    _Style(
        "model.mtp_layers.0.",
        _behind(
            "model.mtp_layers.0.",
            {
                "token_layernorm": TOKEN_NORM,
                "hidden_layernorm": ROW_NORM,
                "input_proj": JOIN,
                "final_layernorm": OUTPUT_NORM,
            },
        ),
        PredictionSpec(row_first=True, hands_normed=True),
    ),
    _Style(
        "model.mtp_block.0.",
        _behind("model.", {"mtp_emb_norm.0": TOKEN_NORM, "mtp_hidden_norm.0": ROW_NORM, "mtp_linear_proj.0": JOIN}),
        PredictionSpec(reads_normed=False),
    ),
)
_GGUF_OTHERS = {
    "nextn.enorm.weight": TOKEN_NORM,
    "nextn.hnorm.weight": ROW_NORM,
    "nextn.eh_proj.weight": JOIN,
    "nextn.shared_head_norm.weight": OUTPUT_NORM,
    "nextn.embed_tokens.weight": EMBEDDING,
    "nextn.shared_head_head.weight": HEAD,
}
# Architectures whose blocks read rows otherwise than most do, which GGUF files do not tell.
_GGUF_SPECS = {
    **dict.fromkeys(("qwen3next", "qwen35", "qwen35moe"), _LAST),
    "mimo2": _LAST,
    "ernie4_5-moe": PredictionSpec(reads_normed=False),
}


@dataclass(frozen=True)
class BlockTensors:
    """The tensors of a block under the names they have here (a layer's: under those that the first layer has in files),
    and how it reads rows.
    """

    tensors: Mapping[str, TensorEntry]
    spec: PredictionSpec


def gguf_block(
    config: Fields, architecture: str, tensors: Mapping[str, _Tensor]
) -> tuple[dict[str, _Tensor], dict[str, _Tensor], PredictionSpec] | None:
    """The tensors of a layer of the first such block of a GGUF file, as `blk.0`, its others by their names here, and
    how it reads rows; None where there is none. `config`: the keys of its architecture.
    """
    known = [(int(match[1]), match[2], name) for name in tensors if (match := _GGUF_BLOCK.fullmatch(name))]
    blocks = {block for block, rest, _ in known if rest.startswith(_OF_GGUF)}
    blocks = {block for block in blocks if block >= trunk_layers(config)}
    if not blocks:
        return None
    first = [(rest, tensors[name]) for block, rest, name in known if block == min(blocks)]
    layer = {f"blk.0.{rest}": tensor for rest, tensor in first if not rest.startswith(_OF_GGUF)}
    others = {_GGUF_OTHERS[rest]: tensor for rest, tensor in first if rest in _GGUF_OTHERS}
    return layer, others, _GGUF_SPECS.get(architecture, _USUAL)


def without_prediction_blocks(config: Fields, tensors: Mapping[str, _Tensor]) -> dict[str, _Tensor]:
    """The tensors of a GGUF file, by their names there, without those of such blocks. `config`: the keys of its
    architecture.

    UnsupportedError for a file of such blocks alone. A block behind the layers that is none of them is kept: nothing
    will be found to need it.
    """
    known = {name: match for name in tensors if (match := _GGUF_BLOCK.fullmatch(name))}
    predict = {int(match[1]) for match in known.values() if match[2].startswith(_OF_GGUF)}
    if predict and not any(int(match[1]) not in predict for match in known.values()):
        raise UnsupportedError(
            f"{config.path}: only the block that predicts further tokens (multi-token prediction), not a model; give "
            f"the file of the whole model"
        )
    layers = trunk_layers(config) if predict else 0
    left = {block for block in predict if block >= layers}
    return {name: each for name, each in tensors.items() if name not in known or int(known[name][1]) not in left}


def part_prediction_layers(
    tensors: Mapping[str, TensorEntry], config: Fields
) -> tuple[dict[str, TensorEntry], dict[str, TensorEntry]]:
    """The tensors of a folder with this config.json without those of such blocks, and these."""
    layers = config.optional_integer("num_hidden_layers", maximum=limits.MOST_LAYERS)
    predict = set(_predicting(tensors, layers)) if layers else set()

    def is_left(name: str) -> bool:
        match = _FOLDER_LAYER.fullmatch(name)
        return bool(_NAMED.fullmatch(name)) or (match is not None and int(match[1]) in predict)

    own = {name: entry for name, entry in tensors.items() if is_left(name)}
    return {name: entry for name, entry in tensors.items() if name not in own}, own


def folder_block(tensors: Mapping[str, TensorEntry], layers: int) -> BlockTensors | None:
    """The first of the blocks in these tensors of a folder's model with so many layers; None where it is of no style
    that is known.
    """
    for style in STYLES:
        prefix = style.layer.format(layer=layers)
        others = {name.format(layer=layers): ours for name, ours in style.others.items()}
        if not any(name in tensors and ours == JOIN for name, ours in others.items()):
            continue
        found = {ours: tensors[name] for name, ours in others.items() if name in tensors}
        found |= {
            _LAYER + name.removeprefix(prefix).replace(*_PRE_MLP): entry
            for name, entry in tensors.items()
            if name.startswith(prefix) and name not in others
        }
        return BlockTensors({name: replace(entry, name=name) for name, entry in found.items()}, style.spec)
    return None


def _predicting(names: Iterable[str], layers: int) -> Iterable[int]:
    """The numbers behind the last layer whose tensors are those of such a block."""
    for name in names:
        match = _FOLDER_LAYER.fullmatch(name)
        if match and int(match[1]) >= layers and match[2].startswith(_OF_FOLDER):
            yield int(match[1])
