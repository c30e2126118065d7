"""Hugging Face folders: which files count, and files that cannot be."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from homenode.errors import CheckpointError, UnsupportedError, UserError
from homenode.model.architectures.registry import architecture_of
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.formats.safetensors import read_safetensors
from homenode.model.spec import MoeSpec
from homenode.model.weights.names import match_tensors
from tests.checkpoints import make_folder, make_gguf, safetensors_bytes, toy_config, toy_tensors, write_safetensors
from tests.memory import memory_headroom
from tests.paths import STORIES, STORIES_MIXTURE, needs_data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "model")


@pytest.mark.parametrize("shards", [2, 5])
def test_shards(shards: int, tmp_path: Path) -> None:
    one, many = (
        open_checkpoint(make_folder(tmp_path / "a")),
        open_checkpoint(make_folder(tmp_path / "b", shards=shards)),
    )
    assert one.spec == many.spec and {n: e.shape for n, e in one.tensors.items()} == {
        n: e.shape for n, e in many.tensors.items()
    }
    (tmp_path / "b" / "model.safetensors.index.json").unlink()  # then every .safetensors file counts
    assert open_checkpoint(tmp_path / "b").tensors == many.tensors


def test_shards_behind_links_as_in_the_hub_cache(tmp_path: Path) -> None:
    make_folder(tmp_path / "blobs", shards=2)
    snapshot = tmp_path / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    for file in (tmp_path / "blobs").iterdir():
        (snapshot / file.name).symlink_to(Path("..") / ".." / "blobs" / file.name)
    assert len(open_checkpoint(snapshot).tensors) == len(toy_tensors(toy_config()))


def test_consolidated_files_beside_the_shards_do_not_count(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, shards=2)
    (folder / "model.safetensors.index.json").unlink()
    write_safetensors(folder / "consolidated.safetensors", toy_tensors(toy_config()))
    assert all(not entry.file.name.startswith("consolidated") for entry in open_checkpoint(folder).tensors.values())


def test_storage_is_what_most_bytes_are_in(tmp_path: Path) -> None:
    assert [
        open_checkpoint(make_folder(tmp_path / d, dtype=d)).spec.storage for d in ("F32", "F16", "BF16", "F64")
    ] == [
        "F32",
        "F16",
        "BF16",
        "F64",
    ]


def test_a_folder_of_both_kinds_is_read_as_a_folder(folder: Path) -> None:
    make_gguf(folder / "model.gguf")
    assert open_checkpoint(folder).path == folder
    (folder / "model.safetensors").unlink()
    assert open_checkpoint(folder).path == folder / "model.gguf"


@needs_data
def test_real_folders() -> None:
    checkpoint = open_checkpoint(STORIES)
    assert (
        checkpoint.spec.architecture == "llama"
        and len(checkpoint.tensors) == 47
        and checkpoint.spec.tie_word_embeddings
    )
    assert "tokenizer_config.json" in checkpoint.metadata
    moe = open_checkpoint(STORIES_MIXTURE).spec.moe
    assert moe == MoeSpec(num_experts=4, experts_per_token=2, intermediate_size=172, normalise=True)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b"", "no valid JSON"),
        ("config.json", b"[1]", "a JSON list"),
        ("config.json", b"\xff\xfe", "no valid JSON"),
        ("config.json", b"[" * 100_000, "nested too deeply"),
        ("config.json", b'{"hidden_size":' + b"[" * 900 + b"]" * 900 + b"}", "architecture"),
        ("config.json", b'{"a":"' + b"x" * 2**24 + b'"}', "at most 16MiB of text"),
        ("generation_config.json", b"{", "no valid JSON"),
        ("generation_config.json", b'{"eos_token_id": "x"}', "eos_token_id"),
        ("generation_config.json", b'{"temperature": -1}', "temperature"),
        ("generation_config.json", b'{"top_k": 1.5}', "top_k"),
        ("tokenizer_config.json", b"{", "no valid JSON"),
    ],
)
def test_json_files_that_cannot_be(name: str, content: bytes, message: str, folder: Path) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises((CheckpointError, UnsupportedError), match=message) as caught:
        open_checkpoint(folder)
    assert name in caught.value.message


def index_of(folder: Path, change: Any) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    path.write_text(json.dumps(change(index["weight_map"])))


INDEXES: dict[str, tuple[Any, str]] = {
    "no map": (lambda m: {}, "weight_map: seen NoneType"),
    "an empty map": (lambda m: {"weight_map": {}}, "weight_map: seen dict"),
    "a list": (lambda m: [m], "a JSON list"),
    "a number for a file": (lambda m: {"weight_map": m | {"lm_head.weight": 3}}, "weight_map: seen 3"),
    "a missing shard": (lambda m: {"weight_map": m | {"lm_head.weight": "model-3.safetensors"}},
        r"2 of 3 shards, without model-3\.safetensors"),
    "the folder above": (lambda m: {"weight_map": m | {"more": "../model/model-00001-of-00002.safetensors"}},
        "file name: seen '../model/"),
    "hidden dots": (lambda m: {"weight_map": m | {"more": "a/../../b.safetensors"}}, "file name"),
    "an absolute path": (lambda m: {"weight_map": m | {"more": "/etc/passwd"}}, "file name: seen '/etc/passwd'"),
    "an empty name": (lambda m: {"weight_map": m | {"more": ""}}, "file name: seen ''"),
    "a NUL": (lambda m: {"weight_map": m | {"more": "a\0b"}}, "file name"),
    "half a surrogate": (lambda m: {"weight_map": m | {"more": "\ud800"}}, "file name"),
    "a name of 10000 letters": (lambda m: {"weight_map": m | {"more": "x" * 10_000}}, "file name"),
    "the index itself": (lambda m: {"weight_map": m | {"more": "model.safetensors.index.json"}}, "header length"),
    "the folder itself": (lambda m: {"weight_map": m | {"more": "."}}, "file name|regular file"),
}  # fmt: skip


@pytest.mark.parametrize("case", INDEXES)
def test_indexes_that_cannot_be(case: str, tmp_path: Path) -> None:
    change, message = INDEXES[case]
    folder = make_folder(tmp_path / "model", shards=2)
    index_of(folder, change)
    with memory_headroom(64 * 2**20), pytest.raises(CheckpointError, match=message) as caught:
        open_checkpoint(folder)
    assert len(caught.value.message) < 1000


SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
# What an index may say of tensors that are all there.
WRONG_INDEXES: dict[str, Callable[[dict[str, str]], dict[str, str]]] = {
    "a tied output matrix, which was left out": lambda m: m | {"lm_head.weight": SHARDS[0]},
    "a buffer": lambda m: m | {"model.layers.0.self_attn.rotary_emb.inv_freq": SHARDS[1]},
    "one tensor in the other shard": lambda m: m | {"model.embed_tokens.weight": other(m["model.embed_tokens.weight"])},
    "all in the other shard": lambda m: {name: other(shard) for name, shard in m.items()},
    "no word of some": lambda m: dict(list(m.items())[::2]) | dict(zip("xy", SHARDS, strict=True)),
    "a shard by two spellings": lambda m: m | {"model.embed_tokens.weight": f"./{m['model.embed_tokens.weight']}"},
}


def other(shard: str) -> str:
    return SHARDS[1 - SHARDS.index(shard)]


@pytest.mark.parametrize("case", WRONG_INDEXES)
def test_tensors_are_where_the_shards_have_them(case: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", shards=2, tie_word_embeddings=True)
    right = open_checkpoint(folder).tensors
    index_of(folder, lambda m: {"weight_map": WRONG_INDEXES[case](m)})
    assert open_checkpoint(folder).tensors == right


def test_of_a_tensor_in_two_shards_the_index_says_which(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", shards=2)
    tensors = {name: read_safetensors(folder / name) for name in SHARDS}
    twice = next(iter(tensors[SHARDS[0]]))
    values = toy_tensors(toy_config())
    write_safetensors(folder / SHARDS[1], {name: values[name] for name in (*tensors[SHARDS[1]], twice)})
    for shard in SHARDS:
        index_of(folder, lambda m, shard=shard: {"weight_map": m | {twice: shard}})
        assert open_checkpoint(folder).tensors[twice].file.name == shard
    index_of(folder, lambda m: {"weight_map": {name: shard for name, shard in m.items() if name != twice}})
    with pytest.raises(CheckpointError, match=f"{twice}.*one in each of {SHARDS[0]}, {SHARDS[1]}"):
        open_checkpoint(folder)


def test_a_tensor_that_no_shard_has_is_missing(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", shards=2)
    name, left = "model.layers.1.mlp.up_proj.weight", toy_tensors(toy_config())
    shard = open_checkpoint(folder).tensors[name].file
    write_safetensors(shard, {each: left[each] for each in read_safetensors(shard) if each != name})
    checkpoint = open_checkpoint(folder)
    with pytest.raises(CheckpointError, match=re.escape(name)):
        match_tensors(architecture_of(checkpoint.spec.architecture), checkpoint)


def test_a_shard_in_a_loop_of_links(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, shards=2)
    shard = folder / "model-00002-of-00002.safetensors"
    shard.unlink()
    shard.symlink_to(shard.name)
    with pytest.raises(CheckpointError, match="model-00002-of-00002"):
        open_checkpoint(folder)


def test_tensors_twice_without_an_index(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    write_safetensors(folder / "b.safetensors", toy_tensors(toy_config()))
    with pytest.raises(CheckpointError, match=r"seen it also in a\.safetensors"):
        open_checkpoint(folder)


def test_a_model_without_an_embedding(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(safetensors_bytes({"x": ("F32", [1], bytes(4))}))
    with pytest.raises(CheckpointError, match="token embedding: seen none among 1 tensor"):
        open_checkpoint(folder)


def test_paths_that_are_no_model(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(UserError, match="no such file or folder"):
        open_checkpoint(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no model in this folder"):
        open_checkpoint(tmp_path / "empty")
    with pytest.raises(UserError, match="give the folder"):
        open_checkpoint(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedError, match="no pickled files"):
        open_checkpoint(folder)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(CheckpointError, match=r"no \.safetensors file"):
        open_checkpoint(folder)
