"""Models that score pairs of texts: decoders whose score is how much sooner they would say "yes" than "no", as
Qwen3-Reranker does, and heads of GGUF files.

Sources: the model card of Qwen3-Reranker, LogitScore of the sentence-transformers project, and the tensors `cls` of
GGUF files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from homenode.errors import UnsupportedError
from homenode.model.formats import limits
from homenode.model.formats.bounded_files import damaged, is_there, quoted, read_json, read_text
from homenode.model.formats.fields import Fields
from homenode.model.formats.tensor_parts import rows_of
from homenode.model.pooling import HeadActivation, HeadLayer, PoolingKind, PoolingSpec, row_name, yes_or_no
from homenode.model.spec import ModelSpec, TensorEntry

_DECODERS = ("qwen3",)  # the architectures that have published rerankers of this kind
_NAME = re.compile(r"qwen3-(vl-)?reranker")
_WORDS_FIELD = "classifier_from_token"  # what vLLM takes of config.json: the words for no and yes
_MOST_TOKENIZER_BYTES, _MOST_CARD_BYTES = 2**27, 2**20
_DENSE, _OUTPUT = "cls.weight", "cls.output.weight"
_NORM = "cls.norm.weight"


def named_reranker(
    folder: Path, config: Fields, spec: ModelSpec, tensors: Mapping[str, TensorEntry]
) -> PoolingSpec | None:
    """Return how a folder scores that has the class of a model which generates, and whose name or card, or a field of
    its config.json, says that it is a reranker; None for others. CheckpointError where its tokenizer lacks the two
    words.
    """
    if spec.architecture not in _DECODERS:
        return None
    words = config.texts(_WORDS_FIELD)
    if not words and not _NAME.search(_names(folder, config)):
        return None
    no, yes = words if len(words) == 2 else ("no", "yes")
    file = folder / "tokenizer.json"
    model = read_json(file, _MOST_TOKENIZER_BYTES).get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    rows = []
    for word in (yes, no):
        number = vocabulary.get(word) if isinstance(vocabulary, dict) else None
        if not isinstance(number, int) or not 0 <= number < spec.vocab_size:
            raise damaged(file, "vocabulary", seen=f"no token {word!r}", wanted="the words that a reranker says")
        rows.append(row_name(output_of(spec, tensors), number))
    return yes_or_no(*rows)


def _names(folder: Path, config: Fields) -> str:
    card = folder / "README.md"
    heads = (
        [line for line in read_text(card, _MOST_CARD_BYTES).splitlines() if line.startswith("#")]
        if is_there(card)
        else []
    )
    return "\n".join((folder.name, str(config.value("_name_or_path")), *heads)).lower()


def logit_score(file: Path, spec: ModelSpec, tensors: Mapping[str, TensorEntry]) -> PoolingSpec:
    """Return what the config.json of a LogitScore says: the token for yes, and that for no."""
    if spec.architecture not in _DECODERS:
        raise UnsupportedError(
            f"{file}: a LogitScore of {spec.architecture} is not supported; homenode runs that of "
            f"{', '.join(_DECODERS)}"
        )
    fields = Fields(file, read_json(file, _MOST_CARD_BYTES))
    yes, no = (
        fields.integer(f"{kind}_token_id", minimum=0, maximum=min(spec.vocab_size, limits.MOST_VOCAB) - 1)
        for kind in ("true", "false")
    )
    return yes_or_no(*(row_name(output_of(spec, tensors), number) for number in (yes, no)))


def output_of(spec: ModelSpec, tensors: Mapping[str, TensorEntry]) -> str:
    """The matrix that logits come from."""
    return limits.EMBEDDING if spec.tie_word_embeddings or limits.OUTPUT not in tensors else limits.OUTPUT


def with_rows(tensors: Mapping[str, TensorEntry], pooling: PoolingSpec | None) -> dict[str, TensorEntry]:
    """The tensors, and those that the head names as one row of another (`row_name`). CheckpointError where there is no
    such row.
    """
    found = dict(tensors)
    for name in () if pooling is None else pooling.tensors:
        source, is_row, number = name.partition("#")
        if not is_row:
            continue
        entry = tensors.get(source)
        if entry is None or len(entry.shape) != 2 or int(number) >= entry.shape[0]:
            seen = "none" if entry is None else list(entry.shape)
            raise damaged(_file_of(tensors), f"tensor {source}", seen=seen, wanted=f"a matrix with row {number}")
        found[name] = rows_of(entry, name, int(number), 1)
        if source == _OUTPUT:
            found.pop(source, None)
    return found


def _file_of(tensors: Mapping[str, TensorEntry]) -> Path:
    return next((entry.file for entry in tensors.values()), Path())


def gguf_reranker(
    path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, TensorEntry], spec: ModelSpec, keys: Fields
) -> PoolingSpec:
    """Return how a GGUF file scores whose pooling type is that of rerankers; `keys`: those of its architecture.
    UnsupportedError for one without what makes a score of a row.
    """
    output, dense = tensors.get(_OUTPUT), tensors.get(_DENSE)
    if spec.architecture == "jina_bert" and output is None and dense is not None and dense.shape[:1] == (1,):
        return PoolingSpec("cls", 1, (HeadLayer(_DENSE, _bias_of(tensors, _DENSE), "tanh"),), ("LABEL_0",))
    if output is None or len(output.shape) != 2:
        raise UnsupportedError(
            f"{path}: a reranker without {_OUTPUT} is not supported; convert it again, or give its folder"
        )
    labels = tuple(keys.texts("classifier.output_labels")) or tuple(f"LABEL_{n}" for n in range(output.shape[0]))
    if not spec.encodes:
        return _decoder(path, metadata, labels)
    if _DENSE not in tensors:
        raise UnsupportedError(
            f"{path}: a reranker without {_DENSE} is not supported: converters leave the layer out that BERT's "
            "scores go through; give its folder"
        )
    activation: HeadActivation = "gelu_erf" if spec.architecture == "modernbert" else "tanh"
    norm = _NORM if _NORM in tensors else ""
    head = (
        HeadLayer(_DENSE, _bias_of(tensors, _DENSE), activation, norm, spec.norm_eps),
        HeadLayer(_OUTPUT, _bias_of(tensors, _OUTPUT)),
    )
    rows: PoolingKind = "mean" if keys.integer("classifier.pooling_type", 2, minimum=0) == 1 else "cls"
    return PoolingSpec(rows, output.shape[0], head, labels)


def _bias_of(tensors: Mapping[str, TensorEntry], matrix: str) -> str:
    name = matrix.replace(".weight", ".bias")
    return name if name in tensors else ""


def _decoder(path: Path, metadata: Mapping[str, Any], labels: tuple[str, ...]) -> PoolingSpec:
    if labels != ("yes", "no"):
        raise UnsupportedError(
            f"{path}: a decoder that scores {quoted(', '.join(labels))} is not supported; homenode runs those of yes, "
            f"no"
        )
    pooling = yes_or_no(row_name(_OUTPUT, 0), row_name(_OUTPUT, 1))
    template = Fields(path, metadata).text("tokenizer.chat_template.rerank", pooling.template)
    if not re.search(r"\{query\}.*\{document\}", template, re.DOTALL):
        raise damaged(path, "tokenizer.chat_template.rerank", seen=template[:60], wanted="{query}, then {document}")
    return replace(pooling, template=template)
