"""The way in which a model makes vectors or scores of texts, as its files tell it.

Sources: the folders that the sentence-transformers project writes (modules.json, N_Pooling/config.json,
N_Dense/config.json), and the pooling types of the GGUF specification.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from homenode.errors import UnsupportedError
from homenode.model.checkpoint.reranker_files import gguf_reranker, logit_score
from homenode.model.formats import limits
from homenode.model.formats.bounded_files import damaged, inside, is_there, quoted, read_json, read_json_list
from homenode.model.formats.fields import Fields
from homenode.model.formats.safetensors import read_safetensors
from homenode.model.pooling import HeadActivation, HeadLayer, PoolingKind, PoolingSpec, TextForm
from homenode.model.spec import ModelSpec, TensorEntry

MODULES = "modules.json"
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_PROMPTS, _VOCABULARY_CONFIG = "config_sentence_transformers.json", "tokenizer_config.json"
# The names that the file about texts has had, by the model's kind.
_OF_TEXTS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_MOST_JSON_BYTES = 2**20
_MOST_MODULES = 64
_MODES: dict[str, PoolingKind] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}
_OTHER_MODES = ("pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens")
_NAMED_MODES: dict[str, PoolingKind] = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
_ACTIVATIONS: dict[str, HeadActivation] = {"Identity": "none", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu_erf"}
_GGUF_KINDS: dict[int, PoolingKind] = {1: "mean", 2: "cls", 3: "last"}
_RANK = 4
_NOT_SAID = (0, 2**32 - 1)  # the second is -1
_GGUF_DENSE = ("dense_2.weight", "dense_3.weight")


def read_pooling(
    folder: Path, model: ModelSpec, of_model: Mapping[str, TensorEntry]
) -> tuple[PoolingSpec | None, dict[str, TensorEntry]]:
    """Return what modules.json of a folder says follows the model, whose tensors are `of_model`, and the tensors of
    that; None where it says nothing. UnsupportedError for a module that homenode does not have.
    """
    file = folder / MODULES
    if not is_there(file):
        return None, {}
    modules = read_json_list(file, _MOST_JSON_BYTES)
    if len(modules) > _MOST_MODULES:
        raise damaged(file, "modules", seen=len(modules), wanted=f"at most {_MOST_MODULES}")
    spec: PoolingSpec | None = None
    tensors: dict[str, TensorEntry] = {}
    normalised = False
    for number, module in enumerate(modules):
        kind = str(module.get("type", "")).rpartition(".")[2] if isinstance(module, dict) else ""
        path = module.get("path") if isinstance(module, dict) else ""
        inner = inside(folder, path, file) if isinstance(path, str) and path else folder
        if number == 0 and kind.endswith("Transformer"):  # a model's own has a word in front
            continue
        if kind == "Pooling" and spec is None:
            spec = PoolingSpec(_rows_of(inner / _CONFIG), model.hidden_size)
        elif kind == "LogitScore" and spec is None:
            spec = logit_score(inner / _CONFIG, model, of_model)
        elif kind == "Dense" and spec is not None and not spec.labels and not normalised:
            layer, found, width = _dense(inner)
            spec, tensors = replace(spec, head=(*spec.head, layer), width=width), tensors | found
        elif kind == "Normalize" and spec is not None:
            normalised = True  # vectors are, unless a request says otherwise
        elif not (kind == "Dropout" and spec is not None):
            raise UnsupportedError(
                f"{file}: module {number}, a {quoted(kind)}, is not supported there; homenode runs Transformer, "
                "Pooling, Dense and Normalize, in this order"
            )
    return spec and replace(spec, text=_text_form(folder, _first_folder(folder, modules, file), model)), tensors


def _first_folder(folder: Path, modules: list[Any], file: Path) -> Path:
    """The folder of the first module, which has the model."""
    path = modules[0].get("path") if modules and isinstance(modules[0], dict) else ""
    return inside(folder, path, file) if isinstance(path, str) and path else folder


def _text_form(folder: Path, inner: Path, model: ModelSpec) -> TextForm:
    """Return what sentence-transformers does with a text before the model gets it: `inner` is the folder of the model's
    own module. Where no file says how many tokens count, as many as the vocabulary is for, if these are less than fit.
    """
    found = next((inner / name for name in _OF_TEXTS if is_there(inner / name)), None)
    told = Fields(found or inner / _OF_TEXTS[0], {} if found is None else read_json(found, _MOST_JSON_BYTES))
    tokens = told.optional_integer("max_seq_length", minimum=1, maximum=2**31)
    if tokens is None and (of_vocabulary := _vocabulary_length(inner)) is not None:
        tokens = of_vocabulary if of_vocabulary < model.max_position else None
    tokens = None if tokens is None else min(tokens, model.max_position)
    return TextForm(tokens, _default_prompt(folder), told.boolean("do_lower_case", False))


def _vocabulary_length(folder: Path) -> int | None:
    """`model_max_length` of the vocabulary; None where that says nothing."""
    file = folder / _VOCABULARY_CONFIG
    said = read_json(file, _MOST_JSON_BYTES * 16).get("model_max_length") if is_there(file) else None
    return int(said) if isinstance(said, int | float) and 1 <= said < 2**31 else None


def _default_prompt(folder: Path) -> str:
    """The prompt that stands before each text, of those that a model wants before some; "": none does."""
    file = folder / _PROMPTS
    if not is_there(file):
        return ""
    fields = Fields(file, read_json(file, _MOST_JSON_BYTES))
    name, prompts = fields.text("default_prompt_name"), fields.table("prompts")
    if not name:
        return ""
    if prompts is None or not (prompt := prompts.text(name)):
        raise damaged(file, "default_prompt_name", seen=quoted(name), wanted="the name of one of its prompts")
    return prompt


def _rows_of(file: Path) -> PoolingKind:
    config = read_json(file, _MOST_JSON_BYTES)
    fields = Fields(file, config)
    if not fields.boolean("include_prompt", True):
        raise UnsupportedError(
            f"{file}: include_prompt false is not supported; homenode pools the tokens of prompts, too"
        )
    named = fields.text("pooling_mode")
    asked = [mode for mode in (*_MODES, *_OTHER_MODES) if fields.boolean(mode, False)]
    if not named and not asked:
        return "mean"
    found = _NAMED_MODES.get(named) if named else _MODES.get(asked[0]) if len(asked) == 1 else None
    if found is None:
        raise UnsupportedError(
            f"{file}: pooling by {quoted(named or ' and '.join(asked))} is not supported; homenode has one of "
            f"{', '.join(_MODES)}"
        )
    return found


def _dense(folder: Path) -> tuple[HeadLayer, dict[str, TensorEntry], int]:
    """A matrix behind pooling: the layer, its tensors, and how many elements its result has."""
    file = folder / _CONFIG
    fields = Fields(file, read_json(file, _MOST_JSON_BYTES))
    function = fields.text("activation_function", "torch.nn.modules.activation.Tanh").rpartition(".")[2]
    if function not in _ACTIVATIONS:
        raise UnsupportedError(
            f"{file}: activation_function {quoted(function)} is not supported; homenode has {', '.join(_ACTIVATIONS)}"
        )
    if not is_there(folder / _WEIGHTS):
        raise damaged(folder, "weights", seen=f"no {_WEIGHTS}", wanted=f"{_WEIGHTS}", do="fetch or convert it")
    width = fields.integer("out_features", maximum=limits.MOST_HIDDEN)
    stored = read_safetensors(folder / _WEIGHTS)
    named = {f"{folder.name}.{name}": entry for name, entry in stored.items()}
    tensors = {name: replace(entry, name=name) for name, entry in named.items()}
    matrix, bias = (f"{folder.name}.linear.{part}" for part in ("weight", "bias"))
    if unknown := tensors.keys() - {matrix, bias}:
        raise damaged(folder / _WEIGHTS, "tensors", seen=sorted(unknown)[0], wanted="linear.weight and linear.bias")
    return HeadLayer(matrix, bias if bias in tensors else "", _ACTIVATIONS[function]), tensors, width


def gguf_pooling(
    path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, TensorEntry], architecture: str, model: ModelSpec
) -> PoolingSpec | None:
    """The same of a GGUF file, whose name of its architecture is `architecture`; None where it does not say."""
    fields = Fields(path, metadata, f"{architecture}.")
    kind = fields.optional_integer("pooling_type", minimum=-1, maximum=2**32 - 1)
    if kind is None or kind < 0 or kind in _NOT_SAID:
        return None
    if kind == _RANK:
        return gguf_reranker(path, metadata, tensors, model, fields)
    if kind not in _GGUF_KINDS:
        raise UnsupportedError(
            f"{path}: {architecture}.pooling_type {kind} is not supported; homenode has "
            f"{', '.join(f'{n} ({name})' for n, name in _GGUF_KINDS.items())}"
        )
    head = tuple(HeadLayer(name) for name in _GGUF_DENSE if name in tensors)
    width = tensors[head[-1].matrix].shape[0] if head and tensors[head[-1].matrix].shape else model.hidden_size
    return PoolingSpec(_GGUF_KINDS[kind], width, head)


def base_model_tensors(tensors: dict[str, TensorEntry]) -> dict[str, TensorEntry]:
    """The tensors of a model by itself, without what makes text of its vectors, as embedding models are saved, under
    the names that they have in a whole model; others as they are.
    """
    if limits.EMBEDDING in tensors or limits.EMBEDDING.removeprefix("model.") not in tensors:
        return tensors
    return {f"model.{name}": replace(entry, name=f"model.{name}") for name, entry in tensors.items()}
