"""What the files of a model say of vectors: modules.json and its folders, base models, and the pooling
types of GGUF.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homenode.engine.config import ModelConfig
from homenode.engine.plan.pooling import with_runner
from homenode.errors import CheckpointError, UnsupportedError
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.pooling import HeadLayer, PoolingSpec, TextForm
from homenode.model.weights.pooling_head import load_pooling_head
from tests.checkpoints import make_folder, make_gguf, toy_config, toy_tensors, write_safetensors

WIDTH = int(toy_config("qwen3")["hidden_size"])
MODES = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token", "last": "pooling_mode_lasttoken"}


def write_modules(
    folder: Path, *kinds: str, modes: dict[str, Any] | None = None, dense: dict[str, Any] | None = None
) -> Path:
    """modules.json with modules of these kinds, each in a folder of its own, as sentence-transformers writes them."""
    modules = []
    for number, kind in enumerate(kinds):
        path = f"{number}_{kind}" if number else ""
        modules.append(
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        )
        if kind == "Pooling":
            (folder / path).mkdir()
            (folder / path / "config.json").write_text(
                json.dumps({"word_embedding_dimension": WIDTH} | (modes or {MODES["mean"]: True}))
            )
        if kind == "Dense":
            (folder / path).mkdir()
            told = {
                "in_features": WIDTH,
                "out_features": 3,
                "bias": True,
                "activation_function": "torch.nn.modules.activation.Tanh",
            }
            (folder / path / "config.json").write_text(json.dumps(told | (dense or {})))
            random = np.random.default_rng(number)
            matrix, bias = random.standard_normal((3, WIDTH)), random.standard_normal(3)
            tensors = {"linear.weight": matrix.astype(np.float32), "linear.bias": bias.astype(np.float32)}
            write_safetensors(folder / path / "model.safetensors", tensors)
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def pooling_of(path: Path) -> PoolingSpec | None:
    return open_checkpoint(path).spec.pooling


@pytest.mark.parametrize("first", ["Transformer", "MultiModalTransformer"])  # the latter as GME has it
@pytest.mark.parametrize("rows", MODES)
def test_the_rows_that_count(tmp_path: Path, rows: str, first: str) -> None:
    folder = write_modules(
        make_folder(tmp_path / "model", "qwen3"), first, "Pooling", "Normalize", modes={MODES[rows]: True}
    )
    assert pooling_of(folder) == PoolingSpec(rows, WIDTH)  # type: ignore[arg-type]


def test_newer_files_name_them_in_one_word(tmp_path: Path) -> None:
    folder = write_modules(
        make_folder(tmp_path / "model", "qwen3"), "Transformer", "Pooling", modes={"pooling_mode": "lasttoken"}
    )
    assert pooling_of(folder) == PoolingSpec("last", WIDTH)


def test_a_matrix_behind_pooling(tmp_path: Path) -> None:
    folder = write_modules(make_folder(tmp_path / "model", "qwen3"), "Transformer", "Pooling", "Dense", "Normalize")
    checkpoint = open_checkpoint(folder)
    layer = HeadLayer("2_Dense.linear.weight", "2_Dense.linear.bias", "tanh")
    assert checkpoint.spec.pooling == PoolingSpec("mean", 3, (layer,))
    (loaded,) = load_pooling_head(checkpoint, checkpoint.spec.pooling)
    assert loaded.matrix.shape == (3, WIDTH) and loaded.bias is not None


@pytest.mark.parametrize(
    ("modules", "told", "message"),
    [
        (("Transformer", "SpladePooling"), {}, "'SpladePooling'"),
        (("Transformer", "Dense"), {}, "'Dense'"),
        (("Transformer", "Pooling", "Normalize", "Dense"), {}, "'Dense'"),
        (("Transformer", "Pooling"), {"modes": {"pooling_mode_max_tokens": True}}, "pooling_mode_max_tokens"),
        (("Transformer", "Pooling"), {"modes": {MODES["mean"]: True, MODES["cls"]: True}},
            "mean_tokens and pooling_mode_cls"),
        (("Transformer", "Pooling"), {"modes": {"include_prompt": False}}, "include_prompt"),
        (("Transformer", "Pooling", "Dense"), {"dense": {"activation_function": "torch.nn.SELU"}}, "'SELU'"),
    ],
)  # fmt: skip
def test_what_homenode_lacks_is_refused_by_name(
    tmp_path: Path, modules: tuple[str, ...], told: dict[str, Any], message: str
) -> None:
    folder = write_modules(make_folder(tmp_path / "model", "qwen3"), *modules, **told)
    with pytest.raises(UnsupportedError, match=message):
        open_checkpoint(folder)


def test_a_module_outside_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", "qwen3")
    (folder / "modules.json").write_text(
        json.dumps([{"type": "a.Transformer", "path": ""}, {"type": "a.Pooling", "path": "../other"}])
    )
    with pytest.raises(CheckpointError):
        open_checkpoint(folder)


def test_modules_that_pool_nothing_change_nothing(tmp_path: Path) -> None:
    assert pooling_of(write_modules(make_folder(tmp_path / "model", "qwen3"), "Transformer")) is None


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma2"])
def test_the_weights_of_a_base_model_pool(tmp_path: Path, architecture: str) -> None:
    folder = make_folder(tmp_path / "model", architecture)
    tensors = toy_tensors(toy_config(architecture))
    base = {name.removeprefix("model."): values for name, values in tensors.items() if name != "lm_head.weight"}
    write_safetensors(folder / "model.safetensors", base)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.spec.pooling == PoolingSpec("last", checkpoint.spec.hidden_size)
    assert "model.embed_tokens.weight" in checkpoint.tensors


def test_the_class_of_a_base_model_is_known(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", "qwen3", architectures=["Qwen3Model"])
    assert open_checkpoint(folder).spec.architecture == "qwen3"


@pytest.mark.parametrize(("kind", "rows"), [(1, "mean"), (2, "cls"), (3, "last"), (0, None), (2**32 - 1, None)])
def test_pooling_types_of_gguf(tmp_path: Path, kind: int, rows: str | None) -> None:
    pytest.importorskip("gguf")
    pooling = pooling_of(make_gguf(tmp_path / "model.gguf", "qwen3", keys={"qwen3.pooling_type": kind}))
    assert (pooling and pooling.rows) == rows


@pytest.mark.parametrize(
    ("kind", "message"), [(4, r"a reranker without cls\.output\.weight"), (9, "pooling_type 9 is not supported")]
)
def test_other_pooling_types_are_refused(tmp_path: Path, kind: int, message: str) -> None:
    pytest.importorskip("gguf")
    with pytest.raises(UnsupportedError, match=message):
        open_checkpoint(make_gguf(tmp_path / "model.gguf", "qwen3", keys={"qwen3.pooling_type": kind}))


def test_the_runner_says_what_an_engine_makes(tmp_path: Path) -> None:
    own = open_checkpoint(write_modules(make_folder(tmp_path / "a", "qwen3"), "Transformer", "Pooling", "Dense"))
    plain = open_checkpoint(make_folder(tmp_path / "b", "qwen3"))

    def rows(checkpoint: Any, **asked: str) -> str | None:
        pooling = with_runner(checkpoint, ModelConfig(**asked)).spec.pooling
        return pooling and pooling.rows

    assert rows(own) == "mean" and rows(own, pooling="cls") == "cls" and rows(plain) is None
    assert rows(plain, pooling="mean") == "mean" and rows(plain, runner="generate", pooling="mean") is None
    assert rows(plain, runner="pooling") == "last" and rows(plain, runner="pooling", pooling="mean") == "mean"
    generating = with_runner(own, ModelConfig(runner="generate"))
    assert generating.spec.pooling is None and not any(name.startswith("2_Dense") for name in generating.tensors)


def text_form(folder: Path, **files: Any) -> TextForm:
    """What the files of a folder of sentence-transformers say of texts; `files`: objects by names without .json."""
    make_folder(folder, "qwen3")
    write_modules(folder, "Transformer", "Pooling")
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    pooling = pooling_of(folder)
    assert pooling is not None
    return pooling.text


@pytest.mark.parametrize(
    ("files", "tokens"),
    [
        ({}, None),
        ({"sentence_bert_config": {"max_seq_length": 16, "do_lower_case": False}}, 16),
        ({"sentence_xlm-roberta_config": {"max_seq_length": 16}}, 16),
        ({"sentence_bert_config": {"max_seq_length": 256}}, 256),
        ({"sentence_bert_config": {"max_seq_length": 100_000}}, 256),
        ({"sentence_bert_config": {"max_seq_length": None}, "tokenizer_config": {"model_max_length": 100}}, 100),
        ({"tokenizer_config": {"model_max_length": 100}}, 100),
        ({"tokenizer_config": {"model_max_length": 512}}, None),
        ({"tokenizer_config": {"model_max_length": 1e30}}, None),
        ({"sentence_bert_config": {"max_seq_length": 64}, "tokenizer_config": {"model_max_length": 32}}, 64),
    ],
)
def test_how_many_tokens_of_a_text_count(files: dict[str, Any], tokens: int | None, tmp_path: Path) -> None:
    """The toy has 256 positions."""
    assert text_form(tmp_path, **files).tokens == tokens


@pytest.mark.parametrize("value", [0, -1, 1.5, "256", True])
def test_a_number_of_tokens_that_cannot_be(value: object, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"sentence_bert_config\.json.*max_seq_length"):
        text_form(tmp_path, sentence_bert_config={"max_seq_length": value})


def test_letters_that_are_made_small(tmp_path: Path) -> None:
    assert text_form(tmp_path, sentence_bert_config={"do_lower_case": True}).of("A B") == "a b"


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"prompts": {"query": "query: "}, "default_prompt_name": None}, "a"),
        ({"prompts": {"query": "query: "}}, "a"),
        ({"prompts": {"query": "query: "}, "default_prompt_name": "query"}, "query: a"),
    ],
)
def test_the_prompt_that_stands_before_each_text(config: dict[str, Any], text: str, tmp_path: Path) -> None:
    assert text_form(tmp_path, config_sentence_transformers=config).of("a") == text


def test_a_default_prompt_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="default_prompt_name"):
        text_form(tmp_path, config_sentence_transformers={"default_prompt_name": "query", "prompts": {}})
